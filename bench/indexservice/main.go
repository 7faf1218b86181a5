// Command indexservice measures the index service: the time of questions over loopback HTTP/2, at a fixed rate, beside
// events that are applied to the index. The service and the load run in a process each, so each can be bound to a core.
//
//	go build -o /tmp/indexservice ./indexservice
//	/tmp/indexservice run 0 1     # the service on core 0, the load on core 1
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http2"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/indexer"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/kvindex"
)

const (
	size    = 16      // tokens of a block
	asked   = 512     // blocks of a question
	workers = 8       // workers that have the prompts
	cached  = 125_000 // blocks of each worker
	prompts = 200     // different prompts that are asked about
	vocab   = 150_000
)

func main() {
	log.SetFlags(0)
	switch args := os.Args[1:]; {
	case len(args) == 1 && args[0] == "serve":
		serve()
	case len(args) == 7 && args[0] == "load":
		rate, err := strconv.Atoi(args[3])
		if err != nil {
			log.Fatal(err)
		}
		blocks, err := strconv.Atoi(args[6])
		if err != nil {
			log.Fatal(err)
		}
		duration, err := time.ParseDuration(args[4])
		if err != nil {
			log.Fatal(err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(load(args[1], args[2], rate, duration, newDriver(args[5], blocks))); err != nil {
			log.Fatal(err)
		}
	case len(args) >= 3 && args[0] == "run":
		run(args[1], args[2], args[3:])
	default:
		log.Fatal("usage: indexservice run CORE-OF-THE-SERVICE CORE-OF-THE-LOAD [FORM@RATE…], such as grpc/keys@10000")
	}
}

// prompt returns the tokens of a prompt, always the same ones.
func prompt(n, tokens int) []block.Token {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	out := make([]block.Token, tokens)
	for i := range out {
		out[i] = block.Token(r.IntN(vocab))
	}
	return out
}

// serve runs the service, and applies the block events for which the load asks: half of them store a block, half
// remove one.
func serve() {
	f := fleet.New(fleet.Config{})
	changes := indexer.NewChanges(f)
	router, err := warmpath.New(warmpath.Options{Fleet: f, IndexChanged: changes.Made, Index: kvindex.Config{Seed: 7}})
	if err != nil {
		log.Fatal(err)
	}
	for i := range workers {
		id := f.Put(fmt.Sprintf("http://10.0.0.%d:8000", i+1), fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: size})
		f.SetTrust(f.Snapshot().ByID(id).Holders[0], fleet.TrustExact, "benchmark")
	}
	hasher, err := block.NewHasher(block.XXH3, size)
	if err != nil {
		log.Fatal(err)
	}
	var keys []block.Key
	store := func(h fleet.Holder, tokens []block.Token) []uint64 {
		s := kvindex.Stored{BlockSize: size, Tokens: tokens}
		// Engines with the same seed give equal blocks equal hashes.
		keys = hasher.Append(keys[:0], 99, 0, tokens, nil)
		for _, k := range keys {
			s.Hashes = append(s.Hashes, uint64(k))
		}
		router.Store(h, &s)
		return s.Hashes
	}
	for h := range fleet.Holder(workers) {
		for n := range prompts { // each worker has another part of each prompt
			store(h, prompt(n, size*asked*(int(h)+1)/workers))
		}
		for n := prompts * asked / 2; n < cached; n += 512 {
			store(h, prompt(1_000_000+int(h)*1000+n, size*512))
		}
	}
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	rpc, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	service := indexer.New(indexer.Config{}, indexer.Parts{Router: router, Fleet: f, Telemetry: telemetry.New(telemetry.DefaultConfig()), Log: slog.New(slog.DiscardHandler), Changes: changes})
	runtime.GC()
	control, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go answerNothing(control) // ends with the process
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go answerFrames(echo) // ends with the process
	driven, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go events(driven, router, store) // ends with the process
	fmt.Println(front.Addr(), rpc.Addr(), control.Addr(), echo.Addr(), driven.Addr())
	if name := os.Getenv("INDEXSERVICE_PROFILE"); name != "" {
		file, err := os.Create(name)
		if err != nil {
			log.Fatal(err)
		}
		if err := pprof.StartCPUProfile(file); err != nil {
			log.Fatal(err)
		}
	}
	go func() { // reports its processor time for each line of its input, and ends with it
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			var u syscall.Rusage
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
			fmt.Println(time.Duration(u.Utime.Nano()+u.Stime.Nano()).Microseconds(), applied.Load())
		}
		pprof.StopCPUProfile() // does nothing without a profile
		os.Exit(0)
	}()
	if err := service.Serve(context.Background(), front, rpc); err != nil {
		log.Fatal(err)
	}
}

// answerNothing answers each message of a connection with 400 zeros, without HTTP/2. It is the control: what it takes
// is the machine's.
func answerNothing(l net.Listener) {
	c, err := l.Accept()
	for ; err == nil; c, err = l.Accept() {
		go func() { // ends with the connection
			from := bufio.NewReaderSize(c, 64<<10)
			head, answer := make([]byte, 5), make([]byte, 405)
			binary.BigEndian.PutUint32(answer[1:], 400)
			for {
				if _, err := io.ReadFull(from, head); err != nil {
					return
				}
				if _, err := from.Discard(int(binary.BigEndian.Uint32(head[1:]))); err != nil {
					return
				}
				if _, err := c.Write(answer); err != nil {
					return
				}
			}
		}()
	}
	log.Fatal(err)
}

// answerFrames answers the messages of one stream of HTTP/2 with 400 zeros each, in the goroutine that reads frames. It
// is the second control: HTTP/2 without gRPC and without lookup.
func answerFrames(l net.Listener) {
	c, err := l.Accept()
	for ; err == nil; c, err = l.Accept() {
		go func() { // ends with the connection
			from := bufio.NewReaderSize(c, 64<<10)
			if _, err := from.Discard(len(http2.ClientPreface)); err != nil {
				return
			}
			to := bufio.NewWriterSize(c, 64<<10)
			f := http2.NewFramer(to, from)
			f.SetReuseFrames()
			answer, left := make([]byte, 405), 0 // left: bytes of the present message
			binary.BigEndian.PutUint32(answer[1:], 400)
			must(f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}))
			must(f.WriteWindowUpdate(0, 1<<30))
			must(to.Flush())
			var head []byte
			for {
				frame, err := f.ReadFrame()
				if err != nil {
					return
				}
				data, is := frame.(*http2.DataFrame)
				if !is {
					continue
				}
				for b := data.Data(); len(b) > 0; {
					if left == 0 {
						n := min(5-len(head), len(b))
						head, b = append(head, b[:n]...), b[n:]
						if len(head) < 5 {
							break
						}
						left, head = int(binary.BigEndian.Uint32(head[1:])), head[:0]
					}
					n := min(left, len(b))
					if left, b = left-n, b[n:]; left == 0 {
						must(f.WriteData(1, false, answer))
					}
				}
				must(f.WriteWindowUpdate(0, uint32(data.Length)))
				must(f.WriteWindowUpdate(1, uint32(max(data.Length, 1))))
				if from.Buffered() == 0 { // answers that are ready together are sent together
					must(to.Flush())
				}
			}
		}()
	}
	log.Fatal(err)
}

// step is the number of blocks of an announcement.
const step = 32

// events stores and removes blocks in announcements, as engine steps do. Each byte that comes over a connection is one
// announcement, so it comes over a socket and at its own time, as a message of an engine does.
func events(l net.Listener, router *warmpath.Router, store func(fleet.Holder, []block.Token) []uint64) {
	type held struct {
		h      fleet.Holder
		hashes []uint64
	}
	var pool [][]block.Token
	for n := range 512 {
		pool = append(pool, prompt(2_000_000+n, size*step))
	}
	var queue []held
	i := 0
	announce := func() {
		if len(queue) > 1000 {
			router.Remove(queue[0].h, warmpath.Removed{Hashes: queue[0].hashes})
			queue = queue[1:]
			return
		}
		tokens := pool[i%len(pool)]
		tokens[0]++ // another prompt
		h := fleet.Holder(i % workers)
		queue = append(queue, held{h, store(h, tokens)})
		i++
	}
	for {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		orders := make([]byte, 64)
		for n, err := c.Read(orders); err == nil; n, err = c.Read(orders) {
			for range n {
				announce()
			}
			applied.Add(int64(n) * step)
		}
	}
}

// result is what a load measured.
type result struct {
	Asked, Failed       int
	P50, P90, P99, P999 float64 // microseconds from the planned time of a question to the end of its answer
	Late                float64 // the 99th percentile of how late a question was sent
}

// body returns the body of a question about a prompt, in a form: keys, tokens, fixed, unknown (protobuf), json-keys or
// json-tokens.
func body(form string, n int) []byte {
	tokens := prompt(n, size*asked+1)
	h, err := block.NewHasher(block.XXH3, size)
	if err != nil {
		log.Fatal(err)
	}
	keys := h.Append(nil, h.Root(block.Scope{Model: "m"}), 0, tokens, nil)
	switch form {
	case "json-tokens":
		b, _ := json.Marshal(map[string]any{"model_name": "m", "token_ids": tokens})
		return b
	case "json-keys":
		b, _ := json.Marshal(map[string]any{"model_name": "m", "keys": keys, "block_size": size})
		return b
	}
	out := []byte("\x0a\x01m")
	if form == "fixed" {
		out = binary.AppendUvarint(append(out, 13<<3|2), uint64(4*len(tokens)))
		for _, t := range tokens {
			out = binary.LittleEndian.AppendUint32(out, uint32(t))
		}
		return out
	}
	if form == "unknown" { // a model that nobody serves: all but the lookup
		out = []byte("\x0a\x01n")
	}
	if form == "tokens" {
		var packed []byte
		for _, t := range tokens {
			packed = binary.AppendUvarint(packed, uint64(t))
		}
		out = binary.AppendUvarint(append(out, 2<<3|2), uint64(len(packed)))
		return append(out, packed...)
	}
	out = binary.AppendUvarint(append(out, 3<<3|2), uint64(8*len(keys)))
	for _, k := range keys {
		out = binary.LittleEndian.AppendUint64(out, uint64(k))
	}
	return append(out, 4<<3, size)
}

// standard are the forms and rates that run measures.
var standard = []string{"tcp/keys@10000", "ask/keys@10000", "ask/fixed@10000", "grpc/keys@10000", "grpc/tokens@10000", "h2/keys@5000", "h2/tokens@5000", "h2/json-keys@1000", "h2/json-tokens@1000"}

// run measures each form at its rate, with and without events, and prints a table.
func run(serviceCore, loadCore string, forms []string) {
	self, err := os.Executable()
	if err != nil {
		log.Fatal(err)
	}
	if len(forms) == 0 {
		forms = standard
	}
	const rounds, duration = 5, "2s"
	fmt.Printf("| question | transport | questions/s | block events/s | p50 µs | p90 µs | p99 µs (all rounds) | failed | service µs a question | load late, p99 µs |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, events := range []int{0, 500_000} {
		rows := make([][]row, len(forms))
		for range rounds { // the forms take turns, so that a busy moment of the machine is not one form's
			for i, one := range forms {
				form, rate, _ := strings.Cut(one, "@")
				rows[i] = append(rows[i], once(self, serviceCore, loadCore, form, rate, duration, events))
			}
		}
		for i, one := range forms {
			form, rate, _ := strings.Cut(one, "@")
			slices.SortFunc(rows[i], func(a, b row) int { return int(a.P99 - b.P99) })
			r := rows[i][rounds/2]
			transport, what, _ := strings.Cut(form, "/")
			fmt.Printf("| %s | %s | %s | %.0f | %.0f | %.0f | %.0f (%.0f to %.0f) | %d | %.1f | %.0f |\n", what, transport, rate, r.events, r.P50, r.P90, r.P99, rows[i][0].P99, rows[i][rounds-1].P99, r.Failed, r.cpu, r.Late)
		}
	}
}

type row struct {
	result
	events float64 // applied a second
	cpu    float64 // processor time of the service for a question, in microseconds
}

// once measures one form.
func once(self, serviceCore, loadCore, form, rate, duration string, events int) row {
	service := exec.Command("taskset", "-c", serviceCore, self, "serve")
	service.Env, service.Stderr = append(os.Environ(), "GOMAXPROCS=1"), os.Stderr
	in, err := service.StdinPipe()
	if err != nil {
		log.Fatal(err)
	}
	out, err := service.StdoutPipe()
	if err != nil {
		log.Fatal(err)
	}
	if err := service.Start(); err != nil {
		log.Fatal(err)
	}
	lines := bufio.NewReader(out)
	var front, rpc, control, echo, driven string
	if _, err := fmt.Fscan(lines, &front, &rpc, &control, &echo, &driven); err != nil {
		log.Fatal(err)
	}
	figures := func() (cpu, events int64) {
		fmt.Fprintln(in)
		if _, err := fmt.Fscan(lines, &cpu, &events); err != nil {
			log.Fatal(err)
		}
		return cpu, events
	}
	transport, _, _ := strings.Cut(form, "/")
	address := map[string]string{"h2": front, "grpc": rpc, "ask": rpc, "tcp": control, "echo": echo}[transport]
	measure := func(duration string) (r row) {
		began := time.Now()
		cpu, applied := figures()
		c := exec.Command("taskset", "-c", loadCore, self, "load", address, form, rate, duration, driven, strconv.Itoa(events))
		c.Env, c.Stderr = append(os.Environ(), "GOMAXPROCS=1"), os.Stderr
		text, err := c.Output()
		if err != nil {
			log.Fatal(err)
		}
		if err := json.Unmarshal(text, &r.result); err != nil {
			log.Fatal(err)
		}
		cpu2, applied2 := figures()
		r.events = float64(applied2-applied) / time.Since(began).Seconds()
		r.cpu = float64(cpu2-cpu) / float64(max(r.Asked, 1))
		return r
	}
	measure("500ms") // so that pools and connections are warm
	r := measure(duration)
	_ = in.Close()
	_ = service.Wait()
	return r
}
