//go:build unix

package publish

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/zmtp"
	"github.com/warmpath/warmpath/test/testenv"
)

// patience bounds the time of one command of a program that is not ours. It is long, because the machine may be busy.
const patience = 60 * time.Second

// command runs a command for at most 10 times patience, since a compiler may be one, and returns what it prints.
func command(t testing.TB, dir, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// needC skips the test if the C library cannot be built here.
func needC(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("the C library is tested by `make test` and `make interop`, not by -short")
	}
	for _, tool := range []string{"gcc", "make", "pkg-config"} {
		if _, err := exec.LookPath(tool); err != nil {
			testenv.Missing(t, tool, "make interop")
		}
	}
	if exec.Command("pkg-config", "--exists", "libzmq").Run() != nil {
		testenv.Missing(t, "Debian's libzmq3-dev", "make interop")
	}
}

// build builds c/test/driver.c and the library with sanitizers of the compiler.
func build(t testing.TB, sanitizers string) (driver string) {
	t.Helper()
	dir, sanitize := t.TempDir(), "-fsanitize="+sanitizers
	driver = filepath.Join(dir, "driver")
	command(t, "c", "make", "-s", "CC=gcc", strict, "BUILD="+dir, "CFLAGS=-O0 -g1 -fno-sanitize-recover=all "+sanitize,
		"LDFLAGS="+sanitize, driver)
	return driver
}

// strict makes the compiler's warnings errors.
const strict = "WARN=-Wall -Wextra -Wpedantic -Werror"

// driver is a running c/test/driver.c.
type driver struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string
	log   bytes.Buffer
	end   func() error
}

// startDriver starts a driver built with sanitizers, or with AddressSanitizer and UndefinedBehaviorSanitizer.
func startDriver(t testing.TB, sanitizers ...string) *driver {
	t.Helper()
	needC(t)
	d := &driver{t: t, cmd: exec.Command(build(t, cmp.Or(strings.Join(sanitizers, ","), "address,undefined"))), lines: make(chan string)}
	d.cmd.Stderr = &d.log
	d.cmd.WaitDelay = time.Second // a process that the driver left may have its output open
	stdin, err := d.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.stdin = stdin
	stop := make(chan struct{})
	read := make(chan struct{})
	go func() { // ends with the driver's output, or when the test ends; end waits
		defer close(read)
		defer close(d.lines)
		s := bufio.NewScanner(stdout)
		s.Buffer(nil, 64<<20)
		for s.Scan() {
			select {
			case d.lines <- s.Text():
			case <-stop:
			}
		}
	}()
	d.end = sync.OnceValue(func() error {
		_ = stdin.Close()
		timer := time.AfterFunc(patience, func() { _ = d.cmd.Process.Kill() })
		defer timer.Stop()
		close(stop)
		<-read
		return d.cmd.Wait()
	})
	t.Cleanup(func() {
		if err := d.end(); err != nil {
			t.Errorf("the driver ended: %v\n%s", err, d.log.String())
		}
	})
	return d
}

// ask gives the driver a command, and returns its answer.
func (d *driver) ask(format string, args ...any) string {
	d.t.Helper()
	d.say(fmt.Sprintf(format, args...))
	select {
	case line, ok := <-d.lines:
		if !ok {
			d.t.Fatalf("the driver ended: %v\n%s", d.end(), d.log.String())
		}
		return line
	case <-time.After(patience):
		d.t.Fatalf("no answer of the driver within %v to %.200s", patience, format)
	}
	return ""
}

func (d *driver) say(line string) {
	d.t.Helper()
	if _, err := io.WriteString(d.stdin, line+"\n"); err != nil {
		d.t.Fatalf("write to the driver: %v\n%s", err, d.log.String())
	}
}

// line returns an event as the driver reads it.
func (e *vectorEvent) line(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(e.Type)
	set := func(name, value string) {
		if value != "" {
			b.WriteString(" " + name + "=" + value)
		}
	}
	number := func(name string, n int) {
		if n != 0 {
			set(name, strconv.Itoa(n))
		}
	}
	asHex := func(s string) string { return hex.EncodeToString([]byte(s)) }
	list := func(name, texts string, raw []json.RawMessage) {
		var parts []string
		for _, r := range raw {
			if r[0] == '"' {
				name = texts
			}
			parts = append(parts, strings.Trim(string(r), `"`))
		}
		set(name, strings.Join(parts, ","))
	}
	var ids []string
	for _, id := range e.TokenIDs {
		ids = append(ids, strconv.FormatUint(uint64(id), 10))
	}
	set("tokens", strings.Join(ids, ","))
	number("below", e.Below)
	list("hashes", "digests", e.Hashes)
	number("hashes_below", e.HashesBelow)
	if len(e.Parent) > 0 {
		list("parent", "parent_digest", []json.RawMessage{e.Parent})
	}
	number("size", e.BlockSize)
	number("window", e.Window)
	set("lora", asHex(e.LoRA))
	set("salt", asHex(e.Salt))
	set("medium", asHex(e.Medium))
	set("kind", asHex(e.Kind))
	if e.LoRAID != nil {
		set("lora_id", strconv.FormatInt(*e.LoRAID, 10))
	}
	if e.Group != nil {
		set("group", strconv.Itoa(*e.Group))
	}
	for i, keys := range e.ExtraKeys {
		for _, raw := range keys {
			if k := extraKey(t, raw); k.digest != nil {
				set("embedding", fmt.Sprintf("%d:%x", i, k.digest))
			} else {
				set("item", fmt.Sprintf("%d:%x:%d", i, k.id, k.offset))
			}
		}
	}
	return b.String()
}

func (d *driver) encode(c *vectorCase) string {
	d.t.Helper()
	for i := range c.Events {
		d.say(c.Events[i].line(d.t))
	}
	return d.ask("encode %s %d %d", strconv.FormatFloat(c.Time, 'g', -1, 64), c.Rank, c.BlockSize)
}

func TestTheCLibraryWritesTheVectors(t *testing.T) {
	d := startDriver(t)
	v := readVectors(t)
	for _, c := range slices.Concat(v.Cases, vllmCases(t)) {
		// In C, an event whose tokens do not fit its hashes has the field extra_keys only if it has extra keys. vLLM writes
		// nulls there, and a list of nulls says the same to the libraries in Go and Python.
		if slices.ContainsFunc(c.Events, func(e vectorEvent) bool {
			return e.Kind == "sliding_window" && len(e.ExtraKeys) > 0 && !slices.ContainsFunc(e.ExtraKeys, func(k []json.RawMessage) bool { return len(k) > 0 })
		}) {
			continue
		}
		got, want := d.encode(&c), c.Payload
		if c.SHA256 != nil {
			sum := sha256.Sum256(unhex(t, got))
			got, want = hex.EncodeToString(sum[:]), *c.SHA256
		}
		if got != want {
			t.Fatalf("%s: got %s\nwant %s", c.Name, got, want)
		}
	}
	for _, c := range v.Refused {
		// In C, extra keys name their block, so there is no list that could have another length.
		if strings.HasPrefix(c.Name, "extra keys") {
			continue
		}
		if got := d.encode(&c); !strings.HasPrefix(got, "error -1 an argument is wrong: ") {
			t.Errorf("%s: %.100s", c.Name, got)
		}
	}
	for _, c := range v.Hashes {
		text := func(s *string) string {
			if s == nil {
				return "-"
			}
			return hex.EncodeToString([]byte(*s))
		}
		parent := "-"
		if c.Parent != nil {
			parent = *c.Parent
		}
		var ids []string
		for _, id := range c.TokenIDs {
			ids = append(ids, fmt.Sprint(id))
		}
		got := d.ask("hash %d %s %s %s %s", c.BlockSize, parent, text(c.LoRA), text(c.Salt), strings.Join(ids, ","))
		if want := strings.Join(c.Hashes, ","); got != want {
			t.Errorf("%s: got %s, want %s", c.Name, got, want)
		}
	}
	if got := d.ask("misuse"); got != "0 calls went wrong, version 0.1.0" {
		t.Error(got)
	}
}

// open opens the driver's publisher, and returns a reader that follows it.
func (d *driver) open(steps, queue int) *reader {
	d.t.Helper()
	answer := d.ask("open tcp://127.0.0.1:* tcp://127.0.0.1:* kv@c 16 0 %d %d 0", steps, queue)
	events, replay, ok := strings.Cut(answer, " ")
	if !ok || strings.HasPrefix(answer, "error") {
		d.t.Fatal(answer)
	}
	var r reader
	follow(d.t, &KVPublisher{cfg: Config{Endpoint: events, Replay: replay, Topic: "kv@"}}, &r)
	return &r
}

// stat returns a counter of the driver's publisher.
func (d *driver) stat(name string) int {
	d.t.Helper()
	_, value, ok := strings.Cut(d.ask("stats"), name+"=")
	value, _, _ = strings.Cut(value, " ")
	n, err := strconv.Atoi(value)
	if !ok || err != nil {
		d.t.Fatalf("no counter %s", name)
	}
	return n
}

func TestTheCLibraryIsFollowed(t *testing.T) {
	d := startDriver(t)
	d.say("cleared")
	r := d.open(0, 0)
	if got := d.ask("publish"); got != "0" {
		t.Fatalf("published %s", got)
	}
	d.ask("many 4999")
	testenv.Until(t, "the reader has a long replay", r.has(5000))
	if got := d.ask("publish"); !strings.HasPrefix(got, "error -1 an argument is wrong: a batch without events") {
		t.Error(got)
	}
	for _, wrong := range []string{"tcp://127.0.0.1", "udp://x:1", "tcp://*:99999", "tcp://:5", "tcp://*:x"} {
		if got := d.ask("open %s - - 0 0 0 0 0", wrong); !strings.HasPrefix(got, "error -1") {
			t.Errorf("%s: %s", wrong, got)
		}
	}
	d.ask("shutdown 0") // the last wrong open left no publisher
}

// Threads publish while the process forks. No fork uses or harms the publisher, and every message arrives in order.
//
// The driver is built without AddressSanitizer. The allocator of GCC 12's does not take its locks around a fork, so a
// fork may wait forever for a lock that a thread of its parent held.
func TestTheCLibrarySurvivesForks(t *testing.T) {
	d := startDriver(t, "undefined")
	r := d.open(0, 0)
	if got := d.ask("stress 4 2000 20"); got != "0 forks went wrong" {
		t.Error(got)
	}
	testenv.Until(t, "the reader has all messages", r.has(8000))
	if r.lost != 0 || r.restarts != 0 {
		t.Errorf("%d lost, %d restarts", r.lost, r.restarts)
	}
	if got := d.ask("shutdown 1000"); got != "0" {
		t.Errorf("shutdown: %s", got)
	}
}

// Messages beyond the queue are dropped and counted. The reader sees the gap, and a replay has them.
func TestTheCLibrarysQueueIsBounded(t *testing.T) {
	d := startDriver(t)
	r := d.open(1<<20, 3)
	dropped := 0
	testenv.Until(t, "messages are dropped", func() bool {
		d.ask("many 2000")
		dropped = d.stat("dropped")
		return dropped > 0
	})
	n := d.stat("published")
	d.ask("many 1") // shows a gap at the end
	testenv.Until(t, "the reader has all messages", r.has(uint64(n)+1))
	if r.lost != 0 || d.stat("queued") != 0 {
		t.Errorf("%d lost, queued %d", r.lost, d.stat("queued"))
	}
	t.Logf("%d of %d messages dropped", dropped, n)
}

// An engine is built against the installed library, dynamically and statically, and says the library's version.
func TestTheCLibraryIsInstalled(t *testing.T) {
	needC(t)
	dir := t.TempDir()
	prefix := filepath.Join(dir, "usr")
	built := "BUILD=" + filepath.Join(dir, "build")
	command(t, "c", "make", "-s", "CC=gcc", strict, built)
	command(t, "c", "make", "-s", "CC=gcc", strict, built, "PREFIX="+prefix, "install") // another PREFIX than before
	source := filepath.Join(dir, "engine.c")
	program := "#include <stdio.h>\n#include <warmpath_kv.h>\nint main(void) { return puts(warmpath_kv_version()) < 0; }\n"
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := func(more ...string) []string {
		cmd := exec.Command("pkg-config", append(more, "--cflags", "--libs", "warmpath_kv")...)
		cmd.Env = append(os.Environ(), "PKG_CONFIG_PATH="+filepath.Join(prefix, "lib/pkgconfig"))
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("pkg-config: %v", err)
		}
		return strings.Fields(string(out))
	}
	lib := filepath.Join(prefix, "lib")
	shared := filepath.Join(dir, "shared")
	command(t, dir, "gcc", slices.Concat([]string{"-o", shared, source, "-Wl,-rpath," + lib}, flags())...)
	static := filepath.Join(dir, "static")
	command(t, dir, "gcc", "-o", static, source, "-I"+filepath.Join(prefix, "include"), filepath.Join(lib, "libwarmpath_kv.a"), "-lzmq", "-pthread")
	for _, path := range []string{shared, static} {
		if got := command(t, dir, path); got != "0.1.0\n" {
			t.Errorf("%s prints %q", path, got)
		}
	}
	symbols := command(t, dir, "nm", "-D", "--defined-only", filepath.Join(lib, "libwarmpath_kv.so.0"))
	for line := range strings.Lines(symbols) {
		if name := line[strings.LastIndexByte(line, ' ')+1:]; !strings.HasPrefix(name, "warmpath_kv_") {
			t.Errorf("the library exports %s", name)
		}
	}
}

// Of many replay requests of one reader that takes nothing, the publisher answers one, and the last one waits. Others
// have their replays meanwhile.
func TestAReaderTakesTheRoomOfNoOtherInTheCLibrary(t *testing.T) {
	d := startDriver(t)
	events, replay, _ := strings.Cut(d.ask("open tcp://127.0.0.1:* tcp://127.0.0.1:* kv@c 16 0 200000 0 0"), " ")
	d.say("cleared")
	d.ask("publish")
	d.ask("many 200000")
	const asked = 100
	stuck := make(chan struct{})
	greedy, err := zmtp.New(zmtp.DEALER, replay, zmtp.Config{
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			if err == nil {
				err = conn.(*net.TCPConn).SetReadBuffer(4096) // a replay of 10 MB does not fit into the buffers
			}
			return conn, err
		},
		OnConnect: func(p *zmtp.Peer) {
			for range asked {
				_ = p.SendWait(nil, make([]byte, 8))
			}
		},
		OnMessage: func(*zmtp.Peer, [][]byte) { <-stuck },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- greedy.Run(ctx) }() // ends with ctx
	defer func() {
		cancel()
		close(stuck)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	testenv.Until(t, "all requests are taken", func() bool { return d.stat("replays")+d.stat("refused") == asked })
	if replays, refused := d.stat("replays"), d.stat("refused"); replays != 2 || refused != asked-2 {
		t.Errorf("%d replays and %d refused", replays, refused)
	}
	var r reader
	follow(t, &KVPublisher{cfg: Config{Endpoint: events, Replay: replay, Topic: "kv@"}}, &r)
	testenv.Until(t, "another reader is answered", func() bool { return d.stat("replays") > 2 })
}
