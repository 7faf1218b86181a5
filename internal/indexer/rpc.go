package indexer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// codec encodes the messages of indexer.proto for gRPC.
type codec struct{}

var _ encoding.CodecV2 = codec{}

// Name is the name of protobuf in gRPC's content type.
func (codec) Name() string { return "proto" }

// usualAnswer is the room for an answer in bytes: with eight scores it has 400.
const usualAnswer = 512

// Marshal encodes a message.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(encoder)
	if !ok {
		return nil, fmt.Errorf("bug: %T is no message that is sent", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(m.appendTo(make([]byte, 0, usualAnswer)))}, nil
}

// Unmarshal decodes a message.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(decoder)
	if !ok {
		return fmt.Errorf("bug: %T is no message that is received", v)
	}
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	return m.decode(b.ReadOnlyData())
}

// rpc is the gRPC side of a service.
type rpc struct {
	*Service
	ctx     context.Context // ends with the service, and ends its streams
	running sync.WaitGroup  // answers of streams
	methods map[string]bool // by name: whether a call has a stream of questions or answers
}

// newRPC returns the gRPC side of s.
func newRPC(ctx context.Context, s *Service) *rpc {
	r := &rpc{Service: s, ctx: ctx, methods: map[string]bool{}}
	for _, m := range serviceDesc.Methods {
		r.methods[m.MethodName] = false
	}
	for _, m := range serviceDesc.Streams {
		r.methods[m.StreamName] = true
	}
	return r
}

// The windows of HTTP/2: how many bytes of a connection, and of one request over HTTP, a client may send before they
// are read. A question of 8,192 token ids has 25 to 33 KB.
const (
	connWindow   = 4 << 20
	streamWindow = 1 << 20
)

// options returns the options of the gRPC server.
func (r *rpc) options() []grpc.ServerOption {
	o := []grpc.ServerOption{
		grpc.InTapHandle(r.admit), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxCalls), grpc.MaxHeaderListSize(maxHeader),
		grpc.ForceServerCodecV2(codec{}), grpc.ConnectionTimeout(10 * time.Second),
		// Ends connections that are dead, or that had no call for as long as one over HTTP may have none.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second, MaxConnectionIdle: idleLimit}),
		// Workers keep their stacks, which a new goroutine for each call would have to grow. Calls beyond them get a
		// goroutine each.
		grpc.NumStreamWorkers(uint32(2 * runtime.GOMAXPROCS(0))),
		// Fixed windows need no measuring of the network, and few window updates.
		grpc.InitialConnWindowSize(connWindow), grpc.InitialWindowSize(rpcWindow), grpc.ReadBufferSize(64 << 10),
	}
	if r.Certificates != nil {
		o = append(o, grpc.Creds(credentials.NewTLS(r.Certificates.Config())))
	}
	return o
}

// serviceDesc describes the service Index of indexer.proto.
var serviceDesc = grpc.ServiceDesc{
	ServiceName: "warmpath.index.v1.Index",
	HandlerType: (*any)(nil),
	Metadata:    "indexer.proto",
	Methods: []grpc.MethodDesc{
		{MethodName: "Score", Handler: scoreRPC},
		unary("Register", func(_ context.Context, s *Service, r *registration) (encoder, error) {
			listed, err := s.register(r)
			return &registered{listed, r.warning}, err
		}),
		unary("Unregister", func(_ context.Context, s *Service, r *removal) (encoder, error) {
			return &empty{}, s.registry.unregister(r)
		}),
		unary("Workers", func(_ context.Context, s *Service, _ *empty) (encoder, error) {
			return s.list(), nil
		}),
	},
	Streams: []grpc.StreamDesc{
		{StreamName: "Ask", Handler: askRPC, ServerStreams: true, ClientStreams: true},
		streamed("Changes", func(ctx context.Context, s *Service, q *changeRequest, send func(encoder) error) error {
			return s.streamChanges(ctx, q, func(one *change) error { return send(one) }, func() error { return nil })
		}),
		streamed("Dump", func(ctx context.Context, s *Service, q *dumpRequest, send func(encoder) error) error {
			return s.dump(ctx, q, func(one *run) error { return send(one) })
		}),
	},
}

// scoreRPC answers Score. It takes the question from a pool: a long prompt in a new slice for each call would be most
// of the work.
func scoreRPC(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	s := srv.(*rpc).Service
	began := time.Now()
	q := s.questions.Get().(*question)
	err := decode(q)
	if err == nil {
		err = s.score(ctx, q)
		q.answer.id = q.id
	}
	s.scored(httpStatus(err), time.Since(began))
	if err != nil {
		q.reset()
		s.questions.Put(q)
		return nil, rpcError(err)
	}
	return &answered{&s.questions, q}, nil
}

// errOneByOne means that the question needs a call of its own.
var errOneByOne = errors.New("the method Ask takes only token_ids, tokens and keys: ask with Score about a prompt or a chat")

// errStopping means that the service stops: a client may ask another one, or this one again later.
var errStopping = errors.New("the index service stops")

// untilStop returns what serve returns, or errStopping when the service stops: only the return of a method ends a wait
// for the client's next message.
func (r *rpc) untilStop(serve func() error) error {
	ended := make(chan error, 1)
	r.running.Go(func() { ended <- serve() }) // ends with the stream, and serveRPC waits for it
	select {
	case err := <-ended:
		return err
	case <-r.ctx.Done():
		return errStopping
	}
}

// askRPC answers Ask until the client ends the stream, or the service stops.
func askRPC(srv any, stream grpc.ServerStream) error {
	r := srv.(*rpc)
	return rpcError(r.untilStop(func() error { return r.ask(stream) }))
}

// ask answers one question after the other, in one goroutine: to hand a question to another goroutine takes longer than
// the answer. gRPC reads questions ahead, up to rpcWindow, and sends answers together that are ready at the same time.
func (r *rpc) ask(stream grpc.ServerStream) error {
	ctx := stream.Context()
	for first := true; ; first = false {
		q := r.questions.Get().(*question)
		err := stream.RecvMsg(q)
		if err != nil {
			q.reset()
			r.questions.Put(q)
			if errors.Is(err, io.EOF) {
				return nil
			}
			return rpcError(err)
		}
		began := time.Now()
		switch {
		case q.hasText || q.body != nil:
			err = errOneByOne
		default:
			err = r.score(ctx, q)
		}
		if err != nil {
			q.answer = answer{scores: q.answer.scores[:0], code: uint32(status.Code(rpcError(err))), problem: err.Error()}
		}
		q.answer.id = q.id
		if first {
			q.answer.process = r.process
		}
		r.scored(httpStatus(err), time.Since(began))
		if err := stream.SendMsg(&answered{&r.questions, q}); err != nil {
			return rpcError(err)
		}
	}
}

// answered is the answer to a question that goes back to its pool once the answer is encoded, which gRPC does once.
type answered struct {
	pool *sync.Pool
	q    *question
}

func (a *answered) appendTo(dst []byte) []byte {
	dst = a.q.answer.appendTo(dst)
	a.q.reset()
	a.pool.Put(a.q)
	return dst
}

// unary returns a method with one answer.
func unary[M any, P interface {
	*M
	decoder
}](name string, answer func(context.Context, *Service, P) (encoder, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		s := srv.(*rpc).Service
		began := time.Now()
		in := P(new(M))
		var out encoder
		err := decode(in)
		if err == nil {
			out, err = answer(ctx, s, in)
		}
		s.Telemetry.IndexAsked("grpc_"+name, httpStatus(err), time.Since(began))
		if err != nil {
			return nil, rpcError(err)
		}
		return out, nil
	}}
}

// streamed returns a method with a stream of answers. A reader that takes nothing for lineTimeout loses its stream.
func streamed[M any, P interface {
	*M
	decoder
}](name string, answer func(ctx context.Context, s *Service, in P, send func(encoder) error) error) grpc.StreamDesc {
	return grpc.StreamDesc{StreamName: name, ServerStreams: true, Handler: func(srv any, stream grpc.ServerStream) error {
		r := srv.(*rpc)
		began := time.Now()
		ctx, cancel := context.WithCancel(stream.Context())
		defer cancel()
		defer context.AfterFunc(r.ctx, cancel)()
		in := P(new(M))
		err := r.untilStop(func() error { return stream.RecvMsg(in) })
		if err == nil {
			err = r.answer(stream, func(send func(encoder) error) error { return answer(ctx, r.Service, in, send) })
		}
		if r.ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = errStopping
		}
		r.Telemetry.IndexAsked("grpc_"+name, httpStatus(err), time.Since(began))
		return rpcError(err)
	}}
}

// errStuck means that a reader takes nothing.
var errStuck = fmt.Errorf("the reader took nothing for %v: %w", lineTimeout, context.DeadlineExceeded)

// answer calls use with a function that sends a message. When a message cannot be sent for lineTimeout, it returns
// errStuck: only the return of the method ends a send that waits for the reader.
func (r *rpc) answer(stream grpc.ServerStream, use func(send func(encoder) error) error) error {
	stuck := make(chan struct{})
	watch := time.AfterFunc(lineTimeout, sync.OnceFunc(func() { close(stuck) }))
	defer watch.Stop()
	watch.Stop()
	ended := make(chan error, 1)
	r.running.Go(func() { // ends with the stream, and serveRPC waits for it
		ended <- use(func(m encoder) error {
			watch.Reset(lineTimeout)
			defer watch.Stop()
			return stream.SendMsg(m)
		})
	})
	select {
	case err := <-ended:
		return err
	case <-stuck:
		return errStuck
	}
}

func httpStatus(err error) int {
	if err == nil {
		return http.StatusOK
	}
	return statusOf(err)
}

// rpcError returns an error as a status of gRPC.
func rpcError(err error) error {
	if err == nil {
		return nil
	}
	if _, is := status.FromError(err); is {
		return err
	}
	code := codes.InvalidArgument
	switch statusOf(err) {
	case 499:
		code = codes.Canceled
	case http.StatusUnauthorized:
		code = codes.Unauthenticated
	case http.StatusNotFound:
		code = codes.NotFound
	case http.StatusConflict:
		code = codes.FailedPrecondition
	case http.StatusServiceUnavailable:
		code = codes.ResourceExhausted
	case http.StatusUnprocessableEntity:
		code = codes.Unavailable
	}
	switch {
	case errors.Is(err, errStopping), errors.Is(err, errLate):
		code = codes.Unavailable
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	}
	return status.Error(code, err.Error())
}
