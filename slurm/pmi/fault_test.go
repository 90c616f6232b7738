package pmi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// kvServer answers one client as a process manager does, keeps what is put, and
// refuses or cuts exactly what real ones lose silently.
type kvServer struct {
	values  map[string]string
	longest int // bytes of the longest value seen
}

func (s *kvServer) serve(conn net.Conn, version int) error {
	defer conn.Close()
	r := bufio.NewReader(conn)
	var f framing = lineFraming{}
	for {
		m, err := f.decode(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		key, _ := m.get("key")
		value, _ := m.get("value")
		found, ok := s.values[key]
		answer := newMessage(m.cmd+"-response", "rc", "0")
		switch m.cmd {
		case "init":
			answer = newMessage("response_to_init", "rc", "0", "pmi_version", strconv.Itoa(version))
		case "fullinit":
			answer.fields = append(answer.fields, field{"rank", "0"}, field{"size", "1"})
		case "get_maxes":
			answer = newMessage("maxes", "kvsname_max", "256", "keylen_max", "64", "vallen_max", "1024")
		case "get_my_kvsname":
			answer = newMessage("my_kvsname", "kvsname", strings.Repeat("k", 255)) // as long as one may be
		case "put", "kvs-put":
			if len(key) > 63 || ok {
				return fmt.Errorf("key %q of %d bytes, put before: %v", key, len(key), ok)
			}
			s.values[key] = value
			s.longest = max(s.longest, len(value))
			if m.cmd == "put" {
				answer = newMessage("put_result", "rc", "0")
			}
		case "get":
			answer = newMessage("get_result", "rc", "0", "value", found)
			if !ok {
				answer = newMessage("get_result", "rc", "1")
			}
		case "kvs-get":
			answer.fields = append(answer.fields, field{"found", strings.ToUpper(strconv.FormatBool(ok))}, field{"value", found})
		case "barrier_in":
			answer = newMessage("barrier_out")
		case "finalize":
			if version == 1 {
				answer = newMessage("finalize_ack")
			}
		}
		if err := (&link{conn: deadlineless{conn}, framing: f}).send(answer); err != nil {
			return err
		}
		if m.cmd == "init" && version == 2 {
			f = lengthFraming{}
		}
	}
}

type deadlineless struct{ net.Conn }

func (deadlineless) SetDeadline(time.Time) error { return nil }

// alone opens a client of a job of one rank; serve plays the server.
func alone(t *testing.T, cfg Config, serve func(conn net.Conn) error) (*Client, <-chan error, error) {
	t.Helper()
	fd, conn := socketPair(t)
	done := make(chan error, 1)
	go func() { done <- serve(conn) }()
	env := map[string]string{"PMI_FD": strconv.Itoa(fd), "PMI_RANK": "0", "PMI_SIZE": "1", "PMI_JOBID": "7.0"}
	c, err := Open(t.Context(), func(name string) (string, bool) { v, ok := env[name]; return v, ok }, cfg)
	return c, done, err
}

// Values of all sizes come back as they were, whatever bytes are in them, and no
// request exceeds what servers can take.
func TestValuesOfAllSizes(t *testing.T) {
	const seed = 11
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, version := range []int{1, 2} {
		s := &kvServer{values: make(map[string]string)}
		c, done, err := alone(t, Config{Version: version}, func(conn net.Conn) error { return s.serve(conn, version) })
		if err != nil {
			t.Fatal(err, <-done)
		}
		for i, n := range []int{0, 1, 15, 500, 522, 523, 524, 1000, 4096, 40000, MaxValueBytes} {
			value := make([]byte, n)
			for k := range value {
				value[k] = byte(random.Uint32())
			}
			key := fmt.Sprintf("value-%d", i)
			if err := c.Put(t.Context(), key, value); err != nil {
				t.Fatalf("PMI-%d: %d bytes: %v (%v)", version, n, err, <-done)
			}
			got, err := c.Get(t.Context(), key)
			if err != nil || !bytes.Equal(got, value) {
				t.Errorf("PMI-%d: %d bytes: %d came back, %v", version, n, len(got), err)
			}
		}
		if s.longest > 700 || s.longest < 600 {
			t.Errorf("PMI-%d: the longest value on the wire had %d bytes", version, s.longest)
		}
		for _, x := range []struct {
			key   string
			value []byte
			is    error
		}{
			{"", nil, ErrKey},
			{"two words", nil, ErrKey},
			{"semi;colon", nil, ErrKey},
			{strings.Repeat("k", 64), nil, ErrKey},
			{strings.Repeat("k", 62), make([]byte, 2000), ErrKey},
			{"large", make([]byte, MaxValueBytes+1), ErrTooLarge},
			{"value-1", nil, ErrKey},
			{"value-9.3", nil, ErrKey}, // a part of value-9
		} {
			if err := c.Put(t.Context(), x.key, x.value); !errors.Is(err, x.is) {
				t.Errorf("PMI-%d: put %q of %d bytes: %v, want %v", version, x.key, len(x.value), err, x.is)
			}
		}
		// None of these did harm to the conversation.
		if err := c.Fence(t.Context()); err != nil {
			t.Errorf("PMI-%d: %v", version, err)
		}
		if err := c.Finalize(t.Context()); err != nil {
			t.Errorf("PMI-%d: %v", version, err)
		}
		if err := <-done; err != nil {
			t.Errorf("PMI-%d: server: %v", version, err)
		}
	}
}

// A server that answers nonsense, nothing, or hangs up costs an error, never a hang.
func TestOpenAgainstBadServers(t *testing.T) {
	for _, c := range []struct {
		name, answer string
		is           error
	}{
		{"silence", "", ErrTimeout},
		{"hang-up", "\x00", ErrLost},
		{"another protocol", "SSH-2.0-OpenSSH_9.2\r\n", ErrProtocol},
		{"another command", "cmd=barrier_out\n", ErrProtocol},
		{"refusal", "cmd=response_to_init rc=1\n", ErrRefused},
		{"another version", "cmd=response_to_init rc=0 pmi_version=9\n", ErrRefused},
		{"no end of line", strings.Repeat("x", 1<<17), ErrProtocol},
		{"a length that is none", "cmd=response_to_init rc=0 pmi_version=2\n12a4  cmd=x;", ErrProtocol},
		{"an endless message", "cmd=response_to_init rc=0 pmi_version=2\n999999cmd=x;", ErrProtocol},
		{"half a message", "cmd=response_to_init rc=0 pmi_version=2\n100   cmd=fullinit\x00", ErrLost},
		{"another rank", "cmd=response_to_init rc=0 pmi_version=2\n48    cmd=fullinit-response;rc=0;rank=5;size=1;xx=1234;", ErrProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			fd, conn := socketPair(t)
			env := map[string]string{"PMI_FD": strconv.Itoa(fd), "PMI_RANK": "0", "PMI_SIZE": "1", "PMI_JOBID": "7.0"}
			text, hangUp := strings.CutSuffix(c.answer, "\x00")
			go func() {
				_, _ = io.WriteString(conn, text) // the client may leave before it is all out
				if hangUp {
					_ = conn.Close()
				}
			}()
			timeout := time.Minute
			if c.answer == "" {
				timeout = 300 * time.Millisecond
			}
			_, err := Open(t.Context(), func(name string) (string, bool) { v, ok := env[name]; return v, ok }, Config{Timeout: timeout})
			if !errors.Is(err, c.is) {
				t.Errorf("%v, want %v", err, c.is)
			}
		})
	}
}

func TestEnvironmentThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		env map[string]string
		is  error
	}{
		{nil, ErrAbsent},
		{map[string]string{"PMI_RANK": "0", "PMI_SIZE": "1"}, ErrAbsent},
		{map[string]string{"PMI_FD": "1000"}, ErrEnvironment},
		{map[string]string{"PMI_FD": "1000", "PMI_RANK": "1", "PMI_SIZE": "1"}, ErrEnvironment},
		{map[string]string{"PMI_FD": "-1", "PMI_RANK": "0", "PMI_SIZE": "1"}, ErrEnvironment},
		{map[string]string{"PMI_FD": "1000", "PMI_RANK": "0", "PMI_SIZE": "1"}, ErrNotOpen},
		{map[string]string{"PMI_FD": "2", "PMI_RANK": "0", "PMI_SIZE": "1"}, ErrNotOpen}, // the test's own output
		{map[string]string{"PMI_PORT": "127.0.0.1:1"}, ErrEnvironment},
	} {
		lookup := func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }
		if client, err := Open(t.Context(), lookup, Config{}); client != nil || !errors.Is(err, c.is) {
			t.Errorf("%v: %v, want %v", c.env, err, c.is)
		}
		_, fd := c.env["PMI_FD"]
		_, port := c.env["PMI_PORT"]
		if Present(lookup) != (fd || port) {
			t.Errorf("%v: present is wrong", c.env)
		}
	}
	if _, err := Open(t.Context(), func(string) (string, bool) { return "", false }, Config{Version: 3}); !errors.Is(err, ErrEnvironment) {
		t.Errorf("version 3: %v", err)
	}
}

func TestVersionByWhoServes(t *testing.T) {
	srun := map[string]string{
		"PMI_JOBID": "19.0", "PMI_RANK": "1", "PMI_SIZE": "2", "SLURM_MPI_TYPE": "pmi2", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2",
		"SLURM_NODEID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "n[0-1]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
	}
	hydra := maps.Clone(srun)
	hydra["MPI_LOCALRANKID"], hydra["PMI_RANK"], hydra["PMI_SIZE"] = "1", "3", "4"
	interactive := maps.Clone(hydra) // as where salloc starts its shell as a step
	interactive["SLURM_JOB_ID"], interactive["SLURM_STEP_ID"] = "19", "4294967290"
	for _, c := range []struct {
		want int
		env  map[string]string
	}{{1, hydra}, {1, interactive}, {2, srun}} {
		e := environment{func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }}
		if got, err := e.version(0); err != nil || got != c.want {
			t.Errorf("%v: PMI-%d, want %d (%v)", c.env, got, c.want, err)
		}
	}
}

// A fence that another rank never reaches ends with the caller's context, by
// deadline or by cancelling, and the client says so ever after.
func TestFenceEndsWithItsContext(t *testing.T) {
	errSlow := errors.New("the ranks are slow")
	for how, cause := range map[string]error{"deadline": errSlow, "early deadline": errSlow, "cancel": context.Canceled, "default": ErrTimeout} {
		t.Run(how, func(t *testing.T) {
			fenced := make(chan struct{})
			c, done, err := alone(t, Config{Version: 1, FenceTimeout: 50 * time.Millisecond}, func(conn net.Conn) error {
				r := bufio.NewReader(conn)
				for _, answer := range []string{"cmd=response_to_init rc=0 pmi_version=1\n", "cmd=maxes\n", "cmd=my_kvsname kvsname=k\n"} {
					if _, err := r.ReadString('\n'); err != nil {
						return err
					}
					if _, err := io.WriteString(conn, answer); err != nil {
						return err
					}
				}
				if _, err := r.ReadString('\n'); err != nil { // the fence, which gets no answer
					return err
				}
				close(fenced)
				_, err := r.ReadString('\n')
				return err
			})
			if err != nil {
				t.Fatal(err, <-done)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			switch how {
			case "deadline":
				ctx, cancel = context.WithTimeoutCause(ctx, 50*time.Millisecond, errSlow)
				defer cancel()
			case "early deadline":
				ctx, cancel = context.WithTimeoutCause(ctx, 100*time.Millisecond, errSlow)
				defer cancel()
				ctx = earlyDeadline{ctx}
			case "cancel":
				go func() { <-fenced; cancel() }()
			}
			if err := c.Fence(ctx); !errors.Is(err, ErrTimeout) || !errors.Is(err, cause) {
				t.Errorf("fence: %v, want %v", err, cause)
			}
			if err := c.Put(t.Context(), "k", nil); !errors.Is(err, ErrTimeout) {
				t.Errorf("put after a broken fence: %v", err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if err := <-done; !errors.Is(err, io.EOF) {
				t.Errorf("server: %v", err)
			}
		})
	}
}

// earlyDeadline is a context that ends after its deadline, as all do by the clock of a socket.
type earlyDeadline struct{ context.Context }

func (c earlyDeadline) Deadline() (time.Time, bool) {
	deadline, ok := c.Context.Deadline()
	return deadline.Add(-50 * time.Millisecond), ok
}
