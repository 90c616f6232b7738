package slurm

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseTasksPerNode reads Slurm's counts per node, "2(x3),1" for 2 2 2 1, in
// node order. SLURM_STEP_TASKS_PER_NODE and SLURM_JOB_CPUS_PER_NODE have this
// form. Every count is at least 1; more than MaxHosts nodes is ErrTooMany.
func ParseTasksPerNode(text string) ([]int, error) {
	var counts []int
	column := 1
	for item := range strings.SplitSeq(text, ",") {
		fail := func(err error, format string, args ...any) error {
			return &Error{Value: text, Column: column, Err: err, Detail: fmt.Sprintf(format, args...)}
		}
		number, times := item, "1"
		if open := strings.Index(item, "(x"); open >= 0 {
			if !strings.HasSuffix(item, ")") {
				return nil, fail(ErrSyntax, "%q: want COUNT or COUNT(xNODES), as in 2(x3),1", item)
			}
			number, times = item[:open], item[open+2:len(item)-1]
		}
		n, err := parseCount(number)
		if err != nil {
			return nil, fail(ErrSyntax, "%q: want COUNT or COUNT(xNODES), as in 2(x3),1", item)
		}
		nodes, err := parseCount(times)
		if err != nil {
			return nil, fail(ErrSyntax, "%q: want COUNT or COUNT(xNODES), as in 2(x3),1", item)
		}
		if nodes > MaxHosts-len(counts) {
			return nil, fail(ErrTooMany, "%d nodes or more, the limit is %d", len(counts)+nodes, MaxHosts)
		}
		for range nodes {
			counts = append(counts, n)
		}
		column += len(item) + 1
	}
	return counts, nil
}

// maxTasks bounds tasks per node and in all, so that sums cannot overflow.
const maxTasks = 1 << 24

// parseCount reads a number from 1 to maxTasks, digits only.
func parseCount(s string) (int, error) {
	n, err := parseNumber(s, maxTasks)
	if err == nil && n == 0 {
		return 0, ErrRange
	}
	return n, err
}

// parseNumber reads a number from 0 to limit, digits only.
func parseNumber(s string, limit int) (int, error) {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' }) {
		return 0, ErrSyntax
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n > int64(limit) {
		return 0, ErrRange
	}
	return int(n), nil
}

// FormatTasksPerNode is the inverse of ParseTasksPerNode.
func FormatTasksPerNode(counts []int) string {
	var b strings.Builder
	for i := 0; i < len(counts); {
		k := i
		for k < len(counts) && counts[k] == counts[i] {
			k++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(counts[i]))
		if k-i > 1 {
			fmt.Fprintf(&b, "(x%d)", k-i)
		}
		i = k
	}
	return b.String()
}
