package slurm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
)

// Format is a way to write a Spec for a program to read.
type Format string

// The formats.
const (
	JSON        Format = "json"         // everything, one line
	TFConfig    Format = "tf_config"    // the value of TensorFlow's TF_CONFIG
	ClusterSpec Format = "cluster_spec" // job|host:port;host:port,job|... sorted by job
	Flags       Format = "flags"        // --ps_hosts=... --worker_hosts=... --job_name=... --task_index=...
	Torch       Format = "torch"        // RANK=..., WORLD_SIZE=..., MASTER_ADDR=... one per line
)

// ParseFormat reads the name of a format; "" is JSON.
func ParseFormat(text string) (Format, error) {
	switch f := Format(text); f {
	case "":
		return JSON, nil
	case JSON, TFConfig, ClusterSpec, Flags, Torch:
		return f, nil
	}
	return "", &Error{Value: text, Err: ErrSyntax, Detail: "not a format; formats are json, tf_config, cluster_spec, flags, torch"}
}

type jsonTask struct {
	Type  Role `json:"type"`
	Index int  `json:"index"`
}

type jsonSpec struct {
	Cluster  map[Role][]string `json:"cluster"`
	Task     jsonTask          `json:"task"`
	Rank     int               `json:"rank"`
	Position int               `json:"position"`
	Address  string            `json:"address"`
	Source   string            `json:"source"`
}

type tfConfig struct {
	Cluster map[Role][]string `json:"cluster"`
	Task    jsonTask          `json:"task"`
}

// MarshalJSON is the JSON format.
func (s *Spec) MarshalJSON() ([]byte, error) {
	return json.Marshal(jsonSpec{s.Cluster, jsonTask{s.Role, s.Index}, s.Rank, s.Position, s.Address, s.Source})
}

// Encode writes the spec in a format, ending with a newline.
//
// TFConfig leaves out roles without tasks and, as TensorFlow wants it, the
// evaluator, which is a task outside the cluster. Torch counts ranks by position:
// its rank 0 must run where MASTER_ADDR points, and position 0 is the only task
// whose address every other can compute.
func (s *Spec) Encode(f Format) (string, error) {
	switch f {
	case JSON:
		return encodeJSON(s)
	case TFConfig:
		return encodeJSON(tfConfig{s.trained(), jsonTask{s.Role, s.Index}})
	case ClusterSpec:
		var jobs []string
		cluster := s.trained()
		for _, role := range slices.Sorted(maps.Keys(cluster)) {
			jobs = append(jobs, string(role)+"|"+strings.Join(cluster[role], ";"))
		}
		return strings.Join(jobs, ",") + "\n", nil
	case Flags:
		var b strings.Builder
		for _, role := range slices.Sorted(maps.Keys(s.Cluster)) {
			fmt.Fprintf(&b, "--%s_hosts=%s ", role, strings.Join(s.Cluster[role], ","))
		}
		fmt.Fprintf(&b, "--job_name=%s --task_index=%d\n", s.Role, s.Index)
		return b.String(), nil
	case Torch:
		return s.torch()
	}
	_, err := ParseFormat(string(f))
	return "", err
}

func encodeJSON(v any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "", fmt.Errorf("slurm: spec as JSON: %w", err)
	}
	return b.String(), nil
}

// trained is the cluster without empty roles and without the evaluator.
func (s *Spec) trained() map[Role][]string {
	cluster := make(map[Role][]string, len(s.Cluster))
	for role, hosts := range s.Cluster {
		if len(hosts) > 0 && role != Evaluator {
			cluster[role] = hosts
		}
	}
	return cluster
}

func (s *Spec) torch() (string, error) {
	host, port, err := net.SplitHostPort(s.first)
	if err != nil {
		return "", fmt.Errorf("slurm: address of position 0: %w", err)
	}
	l := s.Place.Layout
	var b strings.Builder
	for _, v := range []struct {
		name  string
		value any
	}{
		{"RANK", s.Position},
		{"WORLD_SIZE", l.Size()},
		{"LOCAL_RANK", s.Place.Local},
		{"LOCAL_WORLD_SIZE", l.Tasks[s.Place.Node]},
		{"GROUP_RANK", s.Place.Node},
		{"GROUP_WORLD_SIZE", len(l.Nodes)},
		{"ROLE_NAME", s.Role},
		{"ROLE_RANK", s.Index},
		{"ROLE_WORLD_SIZE", len(s.Cluster[s.Role])},
		{"MASTER_ADDR", host},
		{"MASTER_PORT", port},
	} {
		fmt.Fprintf(&b, "%s=%v\n", v.name, v.value)
	}
	return b.String(), nil
}
