package pmi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// line is a line of a recorded conversation: what the client wrote or the
// server answered, byte for byte.
type line struct {
	client bool
	text   string
}

// transcript is a conversation recorded between a PMI client and a real server,
// with the variables the launcher had set.
type transcript struct {
	env   map[string]string
	lines []line
}

func readTranscript(t testing.TB, file string) transcript {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	tr := transcript{env: make(map[string]string)}
	for s := range strings.Lines(string(text)) {
		s = strings.TrimSuffix(s, "\n")
		if name, value, ok := strings.Cut(strings.TrimPrefix(s, "# "), "="); ok && strings.HasPrefix(s, "# ") {
			tr.env[name] = value
			continue
		}
		if len(s) < 2 || s[0] != '>' && s[0] != '<' {
			continue
		}
		unquoted, err := strconv.Unquote(s[2:])
		if err != nil {
			t.Fatalf("%s: %s: %v", file, s, err)
		}
		tr.lines = append(tr.lines, line{s[0] == '>', unquoted})
	}
	if len(tr.lines) == 0 {
		t.Fatalf("%s: nothing in it", file)
	}
	return tr
}

// socketPair is a connected pair as launchers make it: the client's end as the
// number that PMI_FD would hold, the server's as a connection.
func socketPair(t testing.TB) (fd int, server net.Conn) {
	t.Helper()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(pair[1]), "server")
	server, err = net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	if err := server.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return pair[0], server
}

// serve plays the server's part of a script and reports where the client's bytes
// differ. It hangs up at the end.
func serve(conn net.Conn, script []line) <-chan error {
	done := make(chan error, 1)
	go func() {
		defer conn.Close() // so that the client does not wait after a difference
		done <- func() error {
			for i, l := range script {
				if !l.client {
					if _, err := io.WriteString(conn, l.text); err != nil {
						return fmt.Errorf("line %d: %w", i+1, err)
					}
					continue
				}
				got := make([]byte, len(l.text))
				n, err := io.ReadFull(conn, got)
				if err != nil || string(got) != l.text {
					return fmt.Errorf("line %d: the client wrote %q (%v), recorded is %q", i+1, got[:n], err, l.text)
				}
			}
			return nil
		}()
	}()
	return done
}

// Every recorded conversation is held again, message by message, over a real
// socket: what our side writes must be the recorded bytes, and every answer must
// be understood.
func TestReplayTranscripts(t *testing.T) {
	for _, file := range []string{
		"slurm-pmi1.rank3.txt", "slurm-pmi2.rank3.txt", "hydra-pmi1.rank3.txt", "hydra-pmi2.rank3.txt",
		"hydra-port-pmi1.rankid2.txt", "ring.rank3.txt", "abort2.rank1.txt",
	} {
		t.Run(file, func(t *testing.T) {
			tr := readTranscript(t, file)
			// The recorder tried to escape a semicolon, which no server understands; this
			// client never sends one.
			var script []line
			for i := 0; i < len(tr.lines); i++ {
				if strings.Contains(tr.lines[i].text, ";;") {
					i++
					continue
				}
				script = append(script, tr.lines[i])
			}
			fd, server := socketPair(t)
			conn, err := inherited(strconv.Itoa(fd))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			done := serve(server, script)
			l := newLink(conn)
			for _, x := range script {
				if strings.HasSuffix(x.text, "\n") {
					l.framing = lineFraming{}
				} else {
					l.framing = lengthFraming{}
				}
				if x.client {
					m, err := l.framing.decode(bufio.NewReader(strings.NewReader(x.text)))
					if err != nil {
						t.Fatalf("%q: %v", x.text, err)
					}
					if err := l.send(m); err != nil {
						t.Fatalf("%q: %v", x.text, err)
					}
					continue
				}
				m, err := l.receive()
				if err != nil {
					t.Fatalf("%q: %v", x.text, err)
				}
				for _, f := range m.fields {
					if !strings.Contains(x.text, f.key+"="+f.value) {
						t.Errorf("%q: read %s=%q", x.text, f.key, f.value)
					}
				}
				if want := strings.Count(x.text, "="); len(m.fields)+1 != want && !strings.Contains(x.text, "==") {
					t.Errorf("%q: %d fields read, want %d", x.text, len(m.fields), want-1)
				}
			}
			if _, err := l.receive(); err != ErrLost && err != syscall.EBADF {
				t.Errorf("after the last line: %v, want ErrLost", err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// script2 is what a server says to Open, Put, Fence, two Gets and Finalize over
// PMI-2; the padding of the length is the server's.
func script2(tr transcript, header string, rcFirst bool) []line {
	answer := func(cmd, rest string) line {
		text := "cmd=" + cmd + ";" + rest + "rc=0;"
		if rcFirst {
			text = "cmd=" + cmd + ";rc=0;" + rest
		}
		return line{false, fmt.Sprintf(header, len(text)) + text}
	}
	say := func(text string) line { return line{true, fmt.Sprintf("%-6d%s", len(text), text)} }
	script := append([]line{}, tr.lines[:4]...) // init and fullinit as recorded
	if tr.env["PMI_JOBID"] == "" {
		script = append(script, tr.lines[4:6]...) // job-getid
	}
	get := "cmd=kvs-get;jobid=" + tr.env["PMI_JOBID"] + ";srcid=-1;key="
	return append(script,
		say("cmd=kvs-put;key=addr-3;value=20:MTAuNzcuMC4yOjM5Nzgz;"), answer("kvs-put-response", ""),
		say("cmd=kvs-fence;"), answer("kvs-fence-response", ""),
		say(get+"addr-0;"), answer("kvs-get-response", "found=TRUE;value=20:MTAuNzcuMC4xOjQ1NDUz;"),
		say(get+"missing;"), answer("kvs-get-response", "found=FALSE;"),
		say("cmd=finalize;"), answer("finalize-response", ""),
	)
}

func script1(tr transcript) []line {
	kvs := "50.0"
	var script []line
	skip := false
	for _, l := range tr.lines {
		if m, err := splitFields(strings.TrimSpace(l.text), ' '); err == nil {
			if name, ok := m.get("kvsname"); ok && !l.client && m.cmd == "my_kvsname" {
				kvs = name
			}
			if l.client { // questions that the client does not ask
				skip = m.cmd == "get_universe_size" || m.cmd == "get_appnum" || m.cmd == "get" || m.cmd == "put" || m.cmd == "barrier_in" || m.cmd == "finalize"
			}
		}
		if !skip {
			script = append(script, l)
		}
	}
	last := tr.lines[len(tr.lines)-1].text
	rc := ""
	if strings.Contains(last, "rc=0") {
		rc = " rc=0"
	}
	return append(script,
		line{true, "cmd=put kvsname=" + kvs + " key=addr-3 value=20:MTAuNzcuMC4yOjM5Nzgz\n"}, line{false, "cmd=put_result rc=0 msg=success\n"},
		line{true, "cmd=barrier_in\n"}, line{false, "cmd=barrier_out" + rc + "\n"},
		line{true, "cmd=get kvsname=" + kvs + " key=addr-0\n"}, line{false, "cmd=get_result rc=0 value=20:MTAuNzcuMC4xOjQ1NDUz\n"},
		line{true, "cmd=get kvsname=" + kvs + " key=missing\n"}, line{false, "cmd=get_result rc=-1 msg=key_missing_not_found value=unknown\n"},
		line{true, "cmd=finalize\n"}, line{false, last},
	)
}

// The client as users see it, against each kind of server.
func TestClientOverRecordedServers(t *testing.T) {
	for _, c := range []struct {
		file    string
		version int
		job     string
		script  func(tr transcript) []line
	}{
		{"slurm-pmi2.rank3.txt", 2, "50.0", func(tr transcript) []line { return script2(tr, "%-6d", true) }},
		{"hydra-pmi2.rank3.txt", 2, "kvs_22107_0_1462688512_vm", func(tr transcript) []line { return script2(tr, "%6d", false) }},
		{"slurm-pmi1.rank3.txt", 1, "", script1},
		{"hydra-pmi1.rank3.txt", 1, "kvs_22062_0_257657688_vm", script1},
	} {
		t.Run(c.file, func(t *testing.T) {
			tr := readTranscript(t, c.file)
			fd, server := socketPair(t)
			tr.env["PMI_FD"] = strconv.Itoa(fd)
			done := serve(server, c.script(tr))
			lookup := func(name string) (string, bool) { v, ok := tr.env[name]; return v, ok }
			client, err := Open(t.Context(), lookup, Config{Version: c.version})
			if err != nil {
				t.Fatal(err, <-done)
			}
			if client.Rank() != 3 || client.Size() != 8 || client.version() != c.version || c.job != "" && client.JobID() != c.job {
				t.Errorf("rank %d of %d, job %q, PMI-%d", client.Rank(), client.Size(), client.JobID(), client.version())
			}
			if flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0); errno != 0 || flags&syscall.FD_CLOEXEC == 0 {
				t.Errorf("children would inherit the socket: flags %#x, %v", flags, errno)
			}
			ctx := t.Context()
			if err := client.Put(ctx, "addr-3", []byte("10.77.0.2:39783")); err != nil {
				t.Error(err, <-done)
			}
			if err := client.Put(ctx, "addr-3", []byte("again")); !errors.Is(err, ErrKey) {
				t.Errorf("the same key again: %v", err)
			}
			if err := client.Fence(ctx); err != nil {
				t.Error(err)
			}
			if got, err := client.Get(ctx, "addr-0"); err != nil || string(got) != "10.77.0.1:45453" {
				t.Errorf("addr-0: %q, %v", got, err)
			}
			if got, err := client.Get(ctx, "missing"); !errors.Is(err, ErrNotFound) {
				t.Errorf("missing: %q, %v", got, err)
			}
			if err := client.Finalize(ctx); err != nil {
				t.Error(err)
			}
			if err := client.Fence(ctx); !errors.Is(err, ErrClosed) {
				t.Errorf("fence after the end: %v", err)
			}
			if err := client.Close(); err != nil {
				t.Errorf("second close: %v", err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			if _, err := Open(ctx, lookup, Config{}); !errors.Is(err, ErrNotOpen) {
				t.Errorf("opened again: %v", err)
			}
		})
	}
}

// Over PMI_PORT the server says who we are.
func TestClientOverPort(t *testing.T) {
	tr := readTranscript(t, "hydra-port-pmi1.rankid2.txt")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			done <- err
			return
		}
		done <- <-serve(conn, script1(tr))
	}()
	env := map[string]string{"PMI_PORT": listener.Addr().String(), "PMI_ID": "2"}
	client, err := Open(t.Context(), func(name string) (string, bool) { v, ok := env[name]; return v, ok }, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if client.Rank() != 2 || client.Size() != 4 || client.version() != 1 || client.JobID() != "kvs_22152_0_1427119377_vm" {
		t.Errorf("rank %d of %d, job %q, PMI-%d", client.Rank(), client.Size(), client.JobID(), client.version())
	}
	ctx := context.Background()
	if err := client.Put(ctx, "addr-3", []byte("10.77.0.2:39783")); err != nil {
		t.Error(err)
	}
	if err := client.Fence(ctx); err != nil {
		t.Error(err)
	}
	for key, want := range map[string]error{"addr-0": nil} {
		if _, err := client.Get(ctx, key); !errors.Is(err, want) {
			t.Errorf("%s: %v", key, err)
		}
	}
	if _, err := client.Get(ctx, "missing"); !errors.Is(err, ErrNotFound) {
		t.Errorf("missing: %v", err)
	}
	if err := client.Finalize(ctx); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, file := range []string{"slurm-pmi2.rank3.txt", "hydra-pmi2.rank3.txt", "hydra-pmi1.rank3.txt", "slurm-pmi1.rank3.txt"} {
		for _, l := range readTranscript(f, file).lines {
			f.Add([]byte(l.text))
		}
	}
	f.Add([]byte("999999"))
	f.Add([]byte("-1    cmd=x;"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, framing := range []framing{lineFraming{}, lengthFraming{}} {
			r := bufio.NewReaderSize(bytes.NewReader(data), maxMessageBytes)
			m, err := framing.decode(r)
			if err != nil {
				continue
			}
			if m.cmd == "" {
				t.Fatalf("%q: a message without command", data)
			}
			b, err := framing.encode(m)
			if err != nil {
				continue // a separator in the text of a message, or too long to send
			}
			again, err := framing.decode(bufio.NewReaderSize(bytes.NewReader(b), maxMessageBytes))
			if err != nil || again.String() != m.String() {
				t.Fatalf("%q: %q, again %q, %v", data, m, again, err)
			}
		}
	})
}

func FuzzValue(f *testing.F) {
	f.Add([]byte{}, 700)
	f.Add(bytes.Repeat([]byte{0xff, ';', '\n'}, 700), 600)
	f.Fuzz(func(t *testing.T, value []byte, size int) {
		if len(value) > MaxValueBytes || size < 1 || size > maxPartBytes {
			return
		}
		parts := splitValue(value, max(size, 8))
		for _, p := range parts {
			if len(p) > max(size, 8) || strings.ContainsAny(p, " ;=\n") {
				t.Fatalf("part %q", p)
			}
		}
		got, err := joinValue(func(i int) (string, error) {
			if i >= len(parts) {
				return "", ErrNotFound
			}
			return parts[i], nil
		})
		if err != nil || !bytes.Equal(got, value) {
			t.Fatalf("%x in parts of %d: %x, %v", value, size, got, err)
		}
	})
}

// What another program put under our key must not pass, whatever it is.
func FuzzJoin(f *testing.F) {
	f.Add("8:QUJD", "QUJD")
	f.Add("99999999:", "")
	f.Fuzz(func(t *testing.T, first, rest string) {
		calls := 0
		_, err := joinValue(func(part int) (string, error) {
			if calls++; calls > 100000 {
				t.Fatal("no end of parts")
			}
			if part == 0 {
				return first, nil
			}
			return rest, nil
		})
		if err != nil && !errors.Is(err, ErrProtocol) {
			t.Fatal(err)
		}
	})
}
