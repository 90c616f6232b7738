package wire

import (
	"bytes"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestFrameRoundTrip(t *testing.T) {
	for _, size := range []int{0, 1, readStep - 1, readStep, readStep + 1, 5*readStep + 3} {
		body := bytes.Repeat([]byte{byte(size)}, size)
		raw := AppendFrame(nil, 9, body)
		raw = AppendFrame(raw, 10, nil)
		r := bytes.NewReader(raw)
		kind, got, err := ReadFrame(r, nil, size)
		if err != nil || kind != 9 || !bytes.Equal(got, body) {
			t.Fatalf("size %d: kind %d, %d bytes, %v", size, kind, len(got), err)
		}
		if kind, got, err = ReadFrame(r, got, 0); err != nil || kind != 10 || len(got) != 0 {
			t.Fatalf("size %d, second: kind %d, %d bytes, %v", size, kind, len(got), err)
		}
		if _, _, err = ReadFrame(r, nil, 0); err != io.EOF {
			t.Fatalf("end: %v", err)
		}
	}
}

func TestFrameMalformed(t *testing.T) {
	for _, c := range []struct{ name, raw, want string }{
		{"no kind", "\x00\x00\x00\x00\x01", "length 0"},
		{"too long", "\xff\xff\xff\xff\x01", "length 4294967295"},
		{"one too many", "\x0a\x00\x00\x00\x01", "length 10"},
		{"cut in the head", "\x01\x00", "unexpected EOF"},
		{"cut in the body", "\x05\x00\x00\x00\x01ab", "unexpected EOF"},
	} {
		if _, _, err := ReadFrame(strings.NewReader(c.raw), nil, 8); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// A length field alone makes nobody allocate.
func TestFrameAllocation(t *testing.T) {
	const huge = 1 << 30
	raw := AppendFrame(nil, 1, nil)
	raw[0], raw[3] = 0, 0x3f
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, _, err := ReadFrame(bytes.NewReader(raw), nil, huge); err != io.ErrUnexpectedEOF {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Fatalf("%d bytes allocated for a frame that never came", grown)
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(AppendFrame(nil, 1, []byte("body")))
	f.Add([]byte{0xff, 0xff, 0xff, 0x7f, 1})
	f.Fuzz(func(t *testing.T, raw []byte) {
		kind, body, err := ReadFrame(bytes.NewReader(raw), nil, 1<<16)
		if err == nil && !bytes.HasPrefix(raw, AppendFrame(nil, kind, body)) {
			t.Fatalf("frame %d %q is not what was read", kind, body)
		}
	})
}

// Whatever a stranger sends, the acceptor ends with an error and admits nobody.
func FuzzWelcome(f *testing.F) {
	me := self(1)
	good := me.intro(Data, 0)
	f.Add(good.encode(nil))
	f.Add(append(good.encode(nil), make([]byte, macBytes)...))
	f.Add([]byte("SSH-2.0-OpenSSH_9.2\r\n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		stranger, door := net.Pipe()
		defer door.Close()
		go func() {
			go io.Copy(io.Discard, stranger)
			stranger.Write(sent)
			stranger.Close()
		}()
		host := self(0)
		if _, err := Welcome(door, &host, time.Now().Add(time.Second), func(Peer) Verdict {
			t.Error("admitted")
			return Admitted
		}); err == nil {
			t.Fatal("no error")
		}
	})
}

func TestReadSecret(t *testing.T) {
	secret := NewSecret()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w.Write(secret)
	w.Close()
	if got, err := ReadSecret(r); err != nil || !bytes.Equal(got, secret) {
		t.Fatalf("pipe: %x, %v", got, err)
	}
	if _, err := ReadSecret(r); err == nil {
		t.Fatal("an empty pipe has no secret")
	}
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	file.Write(secret)
	for range 2 { // shared offset: at the end of the file after the writing
		if got, err := ReadSecret(file); err != nil || !bytes.Equal(got, secret) {
			t.Fatalf("file: %x, %v", got, err)
		}
	}
	file.Truncate(5)
	if _, err := ReadSecret(file); err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Fatalf("short file: %v", err)
	}
}
