package slurm_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/ib"
	"github.com/fisterra-hpc/fisterra/slurm"
)

type taskRow struct {
	ProcID  int    `json:"procid"`
	NodeID  int    `json:"nodeid"`
	LocalID int    `json:"localid"`
	Type    string `json:"type"`
	Index   int    `json:"index"`
}

// vector is one run of tf4slurm and what a correct program must answer instead
// where the original is wrong.
type vector struct {
	ID           string              `json:"id"`
	Env          map[string]string   `json:"env"`
	TasksPerNode []int               `json:"tasks_per_node"`
	Roles        []string            `json:"roles"`
	InfiniBand   bool                `json:"infiniband"`
	Cluster      map[string][]string `json:"upstream_cluster"`
	Ranks        []taskRow           `json:"upstream_ranks"`
	Require      json.RawMessage     `json:"require"`
}

func vectors(t *testing.T) []vector {
	t.Helper()
	text, err := os.ReadFile("testdata/tf4slurm.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Vectors []vector }
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	return file.Vectors
}

// env is what Slurm sets in the task besides what the vector lists.
func (v vector) env(task taskRow) slurm.Lookup {
	return func(name string) (string, bool) {
		switch name {
		case "SLURM_PROCID":
			return strconv.Itoa(task.ProcID), true
		case "SLURM_NODEID":
			return strconv.Itoa(task.NodeID), true
		case "SLURM_LOCALID":
			return strconv.Itoa(task.LocalID), true
		case "SLURM_STEP_TASKS_PER_NODE":
			return slurm.FormatTasksPerNode(v.TasksPerNode), true
		}
		value, ok := v.Env[name]
		return value, ok
	}
}

// spec does what the fisterra spec command does with the vector in one task.
func (v vector) spec(t *testing.T, task taskRow) (*slurm.Spec, error) {
	t.Helper()
	roles, err := slurm.ParseRoles(strings.Join(v.Roles, ","))
	if err != nil {
		return nil, err
	}
	job, err := slurm.FromEnv(v.env(task))
	if err != nil {
		return nil, err
	}
	cfg := slurm.SpecConfig{Roles: roles}
	if v.InfiniBand {
		rule, err := ib.ParseRule("cesga-ft2", nil)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Address = rule.Address
	}
	return slurm.SpecOf(job.Place(), cfg)
}

// requirement is the object form of a vector's require.
type requirement struct {
	Cluster map[string][]string `json:"cluster"`
	Ranks   []string            `json:"ranks"`
	Error   string              `json:"error"`
	RolesAs string              `json:"roles_as"`
	Roles   string              `json:"roles"`
	Accept  string              `json:"accept"`
	Note    string              `json:"note"`
}

// What the message of each vector that must fail has to say.
var mustSay = map[string][]string{
	"E04": {"1 reserved port", "2 tasks"},
	"E05": {"more tasks than roles", "4 tasks", "3 roles"},
	"E06": {"fewer tasks than roles", "4 tasks", "5 roles"},
	"E08": {"SLURM_STEP_NODELIST"},
	"E09": {"SLURM_NTASKS"},
	"E10": {"column 2", "not closed"},
	"E11": {"node01", "cesga-ft2"},
	"E12": {"c66", "cesga-ft2"},
	"E13": {"c6601.ft2.cesga.es", "cesga-ft2"},
	"E14": {"c12345", "octet", "255"},
	"E19": {"c6601", "same host"},
	"N04": {"no address", "node 0"},
	"N05": {"no address", "node 0"},
	"N08": {"TFSERVER"},
}

func TestTF4SlurmVectors(t *testing.T) {
	done := make(map[string]int)
	for _, v := range vectors(t) {
		t.Run(v.ID, func(t *testing.T) {
			var same string
			var r requirement
			switch {
			case json.Unmarshal(v.Require, &same) == nil:
				if same != "same as upstream" {
					t.Fatalf("require %q is not understood", same)
				}
				done["same"]++
				v.check(t, v.Cluster, v.Ranks)
			case json.Unmarshal(v.Require, &r) != nil:
				t.Fatalf("require %s is not understood", v.Require)
			case r.Cluster != nil:
				done["cluster"]++
				v.check(t, r.Cluster, withRoles(t, v.Ranks, r.Ranks))
			case r.Error != "":
				done["error"]++
				v.checkError(t)
			case r.RolesAs != "": // no reserved ports: roles as with them
				done["roles as"]++
				v.check(t, map[string][]string{"ps": {"c6601:2222"}, "worker": {}}, withRoles(t, v.Ranks, []string{"ps 0"}))
			case r.Roles != "": // chief is a role of its own
				done["roles"]++
				v.check(t, map[string][]string{"chief": {"c6601:12001"}, "ps": {"c6601:12002"}, "worker": {"c6601:12003"}},
					withRoles(t, v.Ranks, []string{"chief 0", "ps 0", "worker 0"}))
			case r.Accept != "": // any white space separates addresses
				done["accept"]++
				v.check(t, map[string][]string{"ps": {"10.0.0.1:12001"}, "worker": {"10.0.0.2:12001"}}, withRoles(t, v.Ranks, []string{"ps 0", "worker 0"}))
			case r.Note != "":
				done["note"]++
				v.checkSwapped(t)
			default:
				t.Fatalf("require %s is not understood", v.Require)
			}
		})
	}
	t.Logf("%v", done)
	for _, kind := range []string{"same", "cluster", "error", "roles as", "roles", "accept", "note"} {
		if done[kind] == 0 {
			t.Errorf("no vector of kind %q was run", kind)
		}
	}
}

// withRoles puts "ps 0" and its like into the rows of the tasks.
func withRoles(t *testing.T, rows []taskRow, roles []string) []taskRow {
	t.Helper()
	if len(rows) != len(roles) {
		t.Fatalf("%d tasks, %d roles", len(rows), len(roles))
	}
	rows = slices.Clone(rows)
	for i := range rows {
		if _, err := fmt.Sscanf(roles[i], "%s %d", &rows[i].Type, &rows[i].Index); err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

func (v vector) check(t *testing.T, cluster map[string][]string, tasks []taskRow) {
	t.Helper()
	taken := make(map[string]bool)
	for _, task := range tasks {
		spec, err := v.spec(t, task)
		if err != nil {
			t.Errorf("rank %d: %v", task.ProcID, err)
			continue
		}
		want := map[slurm.Role][]string{}
		for role, hosts := range cluster {
			want[slurm.Role(role)] = hosts
		}
		source := "slurm"
		if v.Env["TFSERVER"] != "" {
			source = "tfserver"
		}
		// The whole line, byte for byte; keys ps and worker are always there.
		wantJSON, err := json.Marshal(map[string]any{"cluster": want})
		if err != nil {
			t.Fatal(err)
		}
		line := fmt.Sprintf(`%s,"task":{"type":%q,"index":%d},"rank":%d,"position":%d,"address":%q,"source":%q}`+"\n",
			bytes.TrimSuffix(wantJSON, []byte("}")), task.Type, task.Index, task.ProcID, spec.Position,
			want[slurm.Role(task.Type)][task.Index], source)
		if got, err := spec.Encode(slurm.JSON); err != nil || got != line {
			t.Errorf("rank %d: %v\ngot  %swant %s", task.ProcID, err, got, line)
		}
		if !strings.Contains(line, `"ps":[`) || !strings.Contains(line, `"worker":[`) {
			t.Errorf("rank %d: ps or worker missing: %s", task.ProcID, line)
		}
		if taken[spec.Address] {
			t.Errorf("rank %d: address %s has another rank as well", task.ProcID, spec.Address)
		}
		taken[spec.Address] = true
	}
}

func (v vector) checkError(t *testing.T) {
	t.Helper()
	if mustSay[v.ID] == nil {
		t.Fatalf("no words for the error of %s", v.ID)
	}
	for _, task := range v.Ranks {
		spec, err := v.spec(t, task)
		var e *slurm.Error
		if !errors.As(err, &e) {
			t.Errorf("rank %d: %+v, %v; want an *Error", task.ProcID, spec, err)
			continue
		}
		for _, word := range mustSay[v.ID] {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("rank %d: %q does not say %q", task.ProcID, err, word)
			}
		}
	}
}

// checkSwapped: the addresses of two nodes are in the wrong order. From the list
// alone nobody can tell; each host knows its own addresses and refuses.
func (v vector) checkSwapped(t *testing.T) {
	t.Helper()
	v.check(t, v.Cluster, v.Ranks)
	own := [][]string{{"10.0.0.1"}, {"10.0.0.2"}}
	for _, order := range []struct {
		text string
		ok   bool
	}{{"10.0.0.2\n10.0.0.1", false}, {"10.0.0.1\n10.0.0.2", true}} {
		v.Env["TFSERVER"] = order.text
		for _, task := range v.Ranks {
			job, err := slurm.FromEnv(v.env(task))
			if err != nil {
				t.Fatal(err)
			}
			_, err = slurm.SpecOf(job.Place(), slurm.SpecConfig{
				Roles: slurm.Roles{slurm.PS, slurm.Worker, slurm.Worker, slurm.Worker},
				Own: func(address string) error {
					if slices.Contains(own[task.NodeID], address) {
						return nil
					}
					return fmt.Errorf("this host has %v", own[task.NodeID])
				},
			})
			if order.ok && err != nil || !order.ok && !errors.Is(err, slurm.ErrNotOwn) {
				t.Errorf("rank %d, order %q: %v", task.ProcID, order.text, err)
			}
		}
	}
}

// example is a step of 2 nodes with 2 tasks each, no reserved ports.
func example(t *testing.T, node, local, rank int) slurm.Place {
	t.Helper()
	l, err := slurm.NewLayout([]string{"c6601", "c6602"}, []int{2, 2})
	if err != nil {
		t.Fatal(err)
	}
	return slurm.Place{Layout: l, Node: node, Local: local, Rank: rank, Source: "slurm"}
}

func TestSpecRefuses(t *testing.T) {
	roles := slurm.Roles{slurm.PS, slurm.Worker, slurm.Worker, slurm.Worker}
	place := example(t, 0, 0, 0)
	for _, c := range []struct {
		name string
		cfg  slurm.SpecConfig
		is   error
		says string
	}{
		{"strict ports", slurm.SpecConfig{Roles: roles, StrictPorts: true}, slurm.ErrPorts, "no reserved ports for 2 tasks on node 0 (c6601)"},
		{"port base", slurm.SpecConfig{Roles: roles, PortBase: 65535}, slurm.ErrRange, "65535"},
		{"negative port base", slurm.SpecConfig{Roles: roles, PortBase: -1}, slurm.ErrRange, "-1"},
		{"one address for all", slurm.SpecConfig{Roles: roles, Address: func(string) (string, error) { return "10.0.0.1", nil }}, slurm.ErrRepeated, "node 0 (c6601) and node 1 (c6602)"},
		{"empty address", slurm.SpecConfig{Roles: roles, Address: func(string) (string, error) { return "", nil }}, slurm.ErrAddress, "node 0 (c6601)"},
		{"address with port", slurm.SpecConfig{Roles: roles, Address: func(h string) (string, error) { return h + ":1", nil }}, slurm.ErrAddress, "without port"},
		{"unknown role", slurm.SpecConfig{Roles: slurm.Roles{"boss", "ps", "ps", "ps"}}, slurm.ErrRole, `"boss"`},
		{"role count", slurm.SpecConfig{Roles: roles[:3]}, slurm.ErrRoleCount, "4 tasks, 3 roles"},
	} {
		if s, err := slurm.SpecOf(place, c.cfg); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %+v, %v; want %q", c.name, s, err, c.says)
		}
	}
	if _, err := slurm.SpecOf(example(t, 0, 2, 0), slurm.SpecConfig{Roles: roles}); !errors.Is(err, slurm.ErrRange) {
		t.Errorf("local id 2 of 2: %v", err)
	}
	place.Addresses = []string{"10.0.0.1", "10.0.0.2:22"}
	if _, err := slurm.SpecOf(place, slurm.SpecConfig{Roles: roles}); !errors.Is(err, slurm.ErrAddress) || !strings.Contains(err.Error(), `TFSERVER="10.0.0.2:22"`) {
		t.Errorf("an address with a port in TFSERVER: %v", err)
	}
	place.Addresses[1] = "10.0.0.2"
	notOwn := slurm.SpecConfig{Roles: roles, Own: func(string) error { return errors.New("of another host") }}
	if _, err := slurm.SpecOf(place, notOwn); !errors.Is(err, slurm.ErrNotOwn) || !strings.Contains(err.Error(), `TFSERVER="10.0.0.1"`) {
		t.Errorf("another host's address in TFSERVER: %v", err)
	}
}

func TestFormats(t *testing.T) {
	place := example(t, 1, 0, 1) // rank 1 under cyclic distribution
	roles, err := slurm.ParseRoles("ps,chief,worker,evaluator")
	if err != nil {
		t.Fatal(err)
	}
	s, err := slurm.SpecOf(place, slurm.SpecConfig{Roles: roles})
	if err != nil {
		t.Fatal(err)
	}
	if s.Chief {
		t.Error("worker 0 is chief although there is a chief")
	}
	for format, want := range map[slurm.Format]string{
		slurm.JSON:        `{"cluster":{"chief":["c6601:2223"],"evaluator":["c6602:2223"],"ps":["c6601:2222"],"worker":["c6602:2222"]},"task":{"type":"worker","index":0},"rank":1,"position":2,"address":"c6602:2222","source":"slurm"}`,
		slurm.TFConfig:    `{"cluster":{"chief":["c6601:2223"],"ps":["c6601:2222"],"worker":["c6602:2222"]},"task":{"type":"worker","index":0}}`,
		slurm.ClusterSpec: "chief|c6601:2223,ps|c6601:2222,worker|c6602:2222",
		slurm.Flags:       "--chief_hosts=c6601:2223 --evaluator_hosts=c6602:2223 --ps_hosts=c6601:2222 --worker_hosts=c6602:2222 --job_name=worker --task_index=0",
		slurm.Torch: strings.Join([]string{"RANK=2", "WORLD_SIZE=4", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=1", "GROUP_WORLD_SIZE=2",
			"ROLE_NAME=worker", "ROLE_RANK=0", "ROLE_WORLD_SIZE=1", "MASTER_ADDR=c6601", "MASTER_PORT=2222"}, "\n"),
	} {
		if got, err := s.Encode(format); err != nil || got != want+"\n" {
			t.Errorf("%s: %v\ngot  %swant %s", format, err, got, want)
		}
	}
	if _, err := s.Encode("yaml"); !errors.Is(err, slurm.ErrSyntax) {
		t.Errorf("yaml: %v", err)
	}
	only, err := slurm.SpecOf(place, slurm.SpecConfig{Roles: slurm.Roles{slurm.Worker, slurm.Worker, slurm.Worker, slurm.Worker},
		Address: func(h string) (string, error) { return "fd00::" + h[4:], nil }})
	if err != nil {
		t.Fatal(err)
	}
	for format, want := range map[slurm.Format]string{
		slurm.ClusterSpec: "worker|[fd00::1]:2222;[fd00::1]:2223;[fd00::2]:2222;[fd00::2]:2223",
		slurm.Flags:       "--ps_hosts= --worker_hosts=[fd00::1]:2222,[fd00::1]:2223,[fd00::2]:2222,[fd00::2]:2223 --job_name=worker --task_index=2",
	} {
		if got, err := only.Encode(format); err != nil || got != want+"\n" {
			t.Errorf("%s: %v\ngot  %swant %s", format, err, got, want)
		}
	}
	if got, err := only.Encode(slurm.TFConfig); err != nil || strings.Contains(got, `"ps"`) {
		t.Errorf("tf_config with an empty role: %s, %v", got, err)
	}
}
