package slurm

import (
	"fmt"
	"strings"
)

// ParseTFServer reads TFSERVER, the addresses of the step's nodes in their order,
// separated by any white space. It is how a job script overrides where peers
// connect, for instance with the addresses of an InfiniBand interface.
//
// There must be one address for each of nodes; their names, which may be empty, serve for messages only. If nodes
// is empty, any number of addresses from one on is right. A blank line stands for a node that had no address to
// tell: it is ErrAddress, which names the node. An empty text is ErrAddress, too. An address given twice is
// ErrRepeated.
func ParseTFServer(text string, nodes []string) ([]string, error) {
	node := func(i int) string {
		if i < len(nodes) && nodes[i] != "" {
			return fmt.Sprintf("node %d (%s)", i, nodes[i])
		}
		return fmt.Sprintf("node %d", i)
	}
	fail := func(err error, format string, args ...any) error {
		return &Error{Source: "TFSERVER", Value: text, Err: err, Detail: fmt.Sprintf(format, args...)}
	}
	var addresses []string
	for line := range strings.SplitSeq(strings.TrimRight(text, " \t\r\n"), "\n") {
		words := strings.Fields(line)
		if len(words) == 0 {
			return nil, fail(ErrAddress, "no address for %s: its line is empty", node(len(addresses)))
		}
		addresses = append(addresses, words...)
	}
	if len(nodes) > 0 && len(addresses) != len(nodes) {
		return nil, fail(ErrInconsistent, "%d addresses for %d nodes", len(addresses), len(nodes))
	}
	seen := make(map[string]int, len(addresses))
	for i, a := range addresses {
		if k, ok := seen[a]; ok {
			return nil, fail(ErrRepeated, "%s and %s have the same address %s", node(k), node(i), a)
		}
		seen[a] = i
		if strings.ContainsAny(a, ",;|/\"'") {
			return nil, fail(ErrAddress, "%q of %s is not an address or host name", a, node(i))
		}
	}
	return addresses, nil
}
