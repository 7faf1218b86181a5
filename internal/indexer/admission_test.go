package indexer

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// dial connects to the service over gRPC.
func (w *world) dial() *grpc.ClientConn {
	w.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+w.rpc, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{})))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// open begins a call without a message.
func open(ctx context.Context, conn *grpc.ClientConn, method string) (grpc.ClientStream, error) {
	return conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, rpcName+method)
}

func withKey(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer secret-key")
}

// A call without the key is refused by its header: no message of it is read, whichever method it names. So many large
// messages cost no memory, and clients with the key are answered meanwhile.
func TestACallWithoutTheKeyIsRefusedBeforeItsMessageIsRead(t *testing.T) {
	w := serve(t, Config{Key: "secret-key"}, nil)
	p := prompt(1, 200)
	w.store(w.worker("http://a", nil).Holders[0], p[:128], kvindex.Stored{})
	for _, method := range []string{"Score", "Ask", "Register", "Unregister", "Workers", "Changes", "Dump"} {
		s, err := open(t.Context(), w.dial(), method)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.RecvMsg(new(rawMessage)); status.Code(err) != codes.Unauthenticated { // a call that waits for its message has no answer
			t.Errorf("%s: %v", method, err)
		}
	}
	large := rawMessage((&question{model: "m", tokens: make([]block.Token, maxMessage-100)}).appendTo(nil))
	var most, refused atomic.Int64
	stop := make(chan struct{})
	var watching, clients sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				most.Store(max(most.Load(), w.service.calls.used.Load()))
			}
		}
	})
	const connections, calls = 4, 200
	for range connections {
		conn := w.dial()
		for range calls {
			clients.Go(func() {
				s, err := open(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer wrong-key"), conn, "Score")
				if err != nil {
					t.Error(err)
					return
				}
				_ = s.SendMsg(&large) // fails when the call was refused meanwhile
				if err := s.RecvMsg(new(rawMessage)); status.Code(err) == codes.Unauthenticated {
					refused.Add(1)
				} else {
					t.Errorf("a call without the key: %v", err)
				}
			})
		}
	}
	var a answer
	for range 20 {
		if err := w.dial().Invoke(withKey(t.Context()), rpcName+"Score", &question{model: "m", tokens: p}, &a); err != nil || a.scores[0].matched != 128 {
			t.Errorf("a call with the key: %+v, %v", a, err)
		}
		a = answer{}
	}
	clients.Wait()
	close(stop)
	watching.Wait()
	if n := refused.Load(); n != connections*calls {
		t.Errorf("%d calls are refused", n)
	}
	if n := most.Load(); n > 4*callBytes {
		t.Errorf("%d bytes were counted for calls without the key", n)
	}
	testenv.Until(t, "nothing is read", func() bool { return w.service.calls.used.Load() == 0 })
}

// Streams have a bound of their own: streams that ask nothing lock out no question, and a stream that is open goes on
// when there are too many.
func TestIdleStreamsLockOutNoQuestion(t *testing.T) {
	w := serve(t, Config{}, nil)
	w.worker("http://a", nil)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var first grpc.ClientStream
	full, held := false, 0
	for conn := w.dial(); !full && held < 2*maxStreams; held++ {
		if held%maxCalls == 0 {
			conn = w.dial() // one connection holds no more
		}
		s, err := open(ctx, conn, "Ask")
		if err != nil {
			t.Fatal(err)
		}
		_ = s.SendMsg(&question{id: 1}) // fails when the call was refused meanwhile
		switch err := s.RecvMsg(new(answer)); {
		case status.Code(err) == codes.ResourceExhausted:
			full = true
		case err != nil:
			t.Fatal(err)
		}
		first = cmp.Or(first, s)
	}
	if !full || held != maxStreams+1 {
		t.Errorf("%d streams were begun, full: %v", held, full)
	}
	body := `{"token_ids":[` + strings.Repeat("1,", 1<<20) + `1]}`
	if code, text := w.ask("POST", "/query", body); code != http.StatusOK {
		t.Errorf("a long question over HTTP: %d %.200s", code, text)
	}
	var a answer
	if err := w.dial().Invoke(t.Context(), rpcName+"Score", &question{tokens: []block.Token{1}}, &a); err != nil {
		t.Errorf("a question over gRPC: %v", err)
	}
	if err := first.SendMsg(&question{id: 7, tokens: []block.Token{1}}); err != nil {
		t.Error(err)
	}
	if err := first.RecvMsg(&a); err != nil || a.id != 7 || a.code != 0 {
		t.Errorf("a stream that is open: %+v, %v", a, err)
	}
	end()
	testenv.Until(t, "no stream counts", func() bool { return w.service.streams.used.Load() == 0 })
}

// Calls with one answer have a bound of their own, too. What is beyond it is refused.
func TestCallsOverGRPCAreBounded(t *testing.T) {
	w := serve(t, Config{}, nil)
	w.worker("http://a", nil)
	question := &question{tokens: []block.Token{1}}
	w.service.calls.used.Store(maxUnary - callBytes)
	conn := w.dial()
	if err := conn.Invoke(t.Context(), rpcName+"Score", question, new(answer)); err != nil {
		t.Errorf("the last call that fits: %v", err)
	}
	testenv.Until(t, "the call has ended", func() bool { return w.service.calls.used.Load() == maxUnary-callBytes })
	w.service.calls.used.Add(1)
	if err := conn.Invoke(t.Context(), rpcName+"Score", question, new(answer)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
}

// A client that begins a call and sends no message keeps no room for other calls. Its own time limit does not count.
func TestACallWithoutAnEndIsEnded(t *testing.T) {
	if callTimeout > time.Minute {
		t.Errorf("a call keeps its memory for up to %v, a body over HTTP for a minute", callTimeout)
	}
	w := serve(t, Config{}, nil)
	s := New(Config{}, w.service.Parts)
	s.callLimit = 50 * time.Millisecond
	l := listen(t)
	ctx, stop := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.serveRPC(ctx, l) })
	defer serving.Wait()
	defer stop()
	w.rpc = l.Addr().String()
	patient, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	call, err := open(patient, w.dial(), "Score")
	if err != nil {
		t.Fatal(err)
	}
	if err := call.RecvMsg(new(rawMessage)); status.Code(err) != codes.DeadlineExceeded || patient.Err() != nil {
		t.Errorf("a call without a message: %v", err)
	}
	testenv.Until(t, "the call does not count", func() bool { return s.calls.used.Load() == 0 })
}

// A client over gRPC has maxCalls calls at most under way: the service says so before the client's first call, in its
// HTTP/2 settings.
func TestAClientHasABoundedNumberOfCalls(t *testing.T) {
	w := serve(t, Config{}, nil)
	conn, err := net.Dial("tcp", w.rpc)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	// The preface, and empty settings. A frame begins with its length (3 bytes), its type, its flags and its stream.
	_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	head := make([]byte, 9)
	if _, err := io.ReadFull(conn, head); err != nil || head[0] != 0 || head[3] != 4 {
		t.Fatalf("the first frame has no settings: %x, %v", head, err)
	}
	settings := make([]byte, binary.BigEndian.Uint16(head[1:]))
	if _, err := io.ReadFull(conn, settings); err != nil {
		t.Fatal(err)
	}
	const maxConcurrentStreams = 3 // RFC 9113 §6.5.2
	for ; len(settings) >= 6; settings = settings[6:] {
		if binary.BigEndian.Uint16(settings) == maxConcurrentStreams {
			if n := binary.BigEndian.Uint32(settings[2:]); n != maxCalls {
				t.Errorf("a client may have %d calls, want %d", n, maxCalls)
			}
			return
		}
	}
	t.Error("a client may have any number of calls")
}

// A question that is too long for gRPC goes over HTTP, also from a router.
func TestALongQuestionGoesOverHTTP(t *testing.T) {
	w := serve(t, Config{}, nil)
	p := prompt(1, 200)
	w.store(w.worker("http://a", nil).Holders[0], p[:128], kvindex.Stored{})
	var a answer
	err := w.dial().Invoke(t.Context(), rpcName+"Score", &question{tokens: slices.Repeat([]block.Token{1 << 31}, maxMessage)}, &a)
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message that is too long: %v", err)
	}
	s := &stream{questions: make(chan rawMessage, 1), ended: make(chan struct{}), waiting: map[uint64]*asked{}}
	q := &question{keys: make([]block.Key, maxMessage/8), blockSize: 16}
	if _, err := s.ask(t.Context(), q); !errors.Is(err, errStream) || len(s.questions) != 0 || len(s.waiting) != 0 {
		t.Errorf("the stream takes it: %v", err)
	}
	resp, err := http.Post(w.url+"/query", protobuf, strings.NewReader(string(q.appendTo(nil))))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
}
