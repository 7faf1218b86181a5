package indexer

import (
	"bufio"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// The other side is the client that the protobuf compiler makes of indexer.proto for Python.
func TestAClientMadeByTheProtobufCompilerIsAnswered(t *testing.T) {
	python := testenv.Installed(t, "otlp/bin/python", "make interop")
	if exec.CommandContext(t.Context(), python, "-c", "import grpc_tools").Run() != nil {
		testenv.Missing(t, "grpcio-tools for Python", "make interop")
	}
	w := serve(t, Config{Key: "secret-key"}, nil)
	a := w.worker("http://a", func(f *fleet.Facts) { f.Ranks = 2 })
	b := w.worker("http://b", nil)
	p := prompt(1, 200)
	w.store(a.Holders[1], p[:64], kvindex.Stored{})
	w.store(b.Holders[0], p[:32], kvindex.Stored{})
	proto, err := filepath.Abs("indexer.proto")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), python, "testdata/client.py", proto, w.rpc, "secret-key")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var problems strings.Builder
	c.Stderr = &problems
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var one struct {
			Name   string
			Answer json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		got[one.Name] = strings.ReplaceAll(string(one.Answer), `": `, `":`)
		if one.Name == "store" {
			w.store(b.Holders[0], p[:48], kvindex.Stored{})
			if _, err := in.Write([]byte("\n")); err != nil {
				t.Error(err)
			}
		}
	}
	if err := c.Wait(); err != nil {
		t.Fatalf("%v: %s", err, problems.String())
	}
	process := strconv.FormatUint(w.service.process, 10)
	for name, want := range map[string]string{
		"begin":             `{"kind":"BEGIN"}`,
		"tokens":            `"matched":64`,
		"workers asked for": `"scores":[{"worker":"http://b", "matched":32, "gpu":32, "trust":"EXACT", "full":32}]`,
		"big":               `"tokens":100000`,
		"no prompt":         `"error":"INVALID_ARGUMENT"`,
		"unknown model":     `"error":"NOT_FOUND"`,
		"prompt":            `"error":"UNAVAILABLE"`,
		"ask":               `"matched":64, "gpu":64, "trust":"EXACT", "full":64}, {"worker":"http://b", "matched":32, "gpu":32, "trust":"EXACT", "full":32}], "id":"7", "process":"` + process + `"}, {"id":"18446744073709551615", "code":5, "error":"no worker serves`,
		"dump":              `"block_size":16`,
		"keys":              `"rank":1, "matched":32`,
		"other keys":        `"error":"FAILED_PRECONDITION"`,
		"register":          `{}`,
		"bad register":      `model_name is missing`,
		"workers":           `"worker":"c", "model":"m", "group":"default", "block_size":16, "engine_block_size":32, "algorithm":"xxh3", "source":"registered", "ranks":[{"rank":4`,
		"unregister":        `{}`,
		"unregister again":  `"error":"NOT_FOUND"`,
		"wrong key":         `"error":"UNAUTHENTICATED"`,
		"change":            `"kind":"ADDED"`,
	} {
		if !strings.Contains(got[name], want) {
			t.Errorf("%s: %s, want %s", name, got[name], want)
		}
	}
}

// Streams of clients that ask nothing at the moment do not delay the end of the service. Their methods return a status
// that says why; a stream that ends only with its connection has another text.
func TestOpenStreamsDoNotDelayTheEndOfTheService(t *testing.T) {
	w := serve(t, Config{}, nil)
	w.worker("http://a", nil)
	streams := map[string]grpc.ClientStream{}
	for name, method := range map[string]string{"Ask": "Ask", "Changes": "Changes", "Changes without a question": "Changes", "Dump without a question": "Dump"} {
		s, err := open(t.Context(), w.dial(), method)
		if err != nil {
			t.Fatal(err)
		}
		switch name {
		case "Ask":
			err = s.SendMsg(&question{id: 1})
		case "Changes":
			err = errors.Join(s.SendMsg(&changeRequest{}), s.CloseSend())
		}
		if err == nil && method == name {
			err = s.RecvMsg(new(rawMessage)) // the method runs
		}
		if err != nil {
			t.Fatal(err)
		}
		streams[name] = s
	}
	testenv.Until(t, "the streams are open", func() bool { return w.service.streams.used.Load() == int64(len(streams))*callBytes })
	w.stop()
	for name, s := range streams {
		if err := s.RecvMsg(new(rawMessage)); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "the index service stops") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
