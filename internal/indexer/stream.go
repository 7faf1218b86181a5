package indexer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/network"
)

const (
	// openTimeout bounds how long the stream takes from the connection to the answer to its first question.
	openTimeout = 2 * time.Second
	// openEvery is the time between the end of a stream, or of an attempt, and the next attempt.
	openEvery = time.Second
	// astrayEvery is the same if the stream reached another service than index.url, and the one before did, too. Only a
	// change of the network mends that, and a load balancer may show the router another service each time.
	astrayEvery = time.Minute
	// maxQueued bounds the questions that wait to be sent, and maxWaiting those without an answer. Questions beyond them
	// go over HTTP.
	maxQueued  = 64
	maxWaiting = 1024
	// maxSilence is how long a question may have no answer, not even a late one, before the stream is closed: its
	// connection may be dead. Late answers alone do not close it: over another connection they are as late.
	maxSilence = time.Second
)

// errStream means that the stream cannot take a question, or ended before the answer. The question may go over HTTP.
var errStream = errors.New("the stream of questions to the index service has ended")

// errUnopened means that the first question over a stream had no answer in time.
var errUnopened = fmt.Errorf("the first question had no answer within %v", openTimeout)

// errAstray means that index.url and the stream reach different processes, whose indexes may differ.
var errAstray = errors.New("the port for gRPC reaches another index service than index.url")

// errSilent means that the stream was closed because its connection may be dead.
var errSilent = fmt.Errorf("a question had no answer for %v or longer, not even a late one", maxSilence)

// stream asks an index service over one stream of gRPC (Ask). Its method ask may be called from any goroutine.
type stream struct {
	questions chan rawMessage // encoded questions that wait to be sent
	ended     chan struct{}   // closed after the last answer
	process   uint64          // of the service, as it says in its first answer; set before the stream takes questions
	stop      context.CancelCauseFunc

	mu      sync.Mutex        // guards the fields below
	last    uint64            // the id of the last question
	waiting map[uint64]*asked // by id; nil when the stream has ended
	missed  time.Time         // when the first question was asked that had no answer in time; zero: an answer came since
}

// asked is a question without an answer.
type asked struct {
	at     time.Time
	answer []byte
	done   chan struct{} // closed when answer is set
}

// rawMessage is an encoded message.
type rawMessage []byte

func (m *rawMessage) appendTo(dst []byte) []byte { return append(dst, *m...) }

func (m *rawMessage) decode(b []byte) error {
	*m = append((*m)[:0], b...)
	return nil
}

// ask sends a question, and returns the encoded answer. It is errStream if the question may go another way.
func (s *stream) ask(ctx context.Context, q *question) ([]byte, error) {
	a := &asked{at: time.Now(), done: make(chan struct{})}
	s.mu.Lock()
	if s.waiting == nil || len(s.waiting) >= maxWaiting {
		s.mu.Unlock()
		return nil, errStream
	}
	s.last++
	q.id = s.last
	s.waiting[q.id] = a
	s.mu.Unlock()
	// The memory is new each time, because gRPC may still send it when ask returns.
	encoded := q.appendTo(make([]byte, 0, 256+8*len(q.keys)))
	if len(encoded) > maxMessage {
		s.forget(q.id, false)
		return nil, errStream
	}
	select {
	case s.questions <- encoded:
	default:
		s.forget(q.id, false)
		return nil, errStream
	}
	select {
	case <-a.done:
		return a.answer, nil
	case <-s.ended:
		return nil, errStream
	case <-ctx.Done():
		s.forget(q.id, errors.Is(ctx.Err(), context.DeadlineExceeded))
		return nil, fmt.Errorf("ask the index service: %w", ctx.Err())
	}
}

// forget drops a question. missed says that its answer did not come in time.
func (s *stream) forget(id uint64, missed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.waiting[id]
	delete(s.waiting, id)
	if !missed || a == nil {
		return
	}
	if s.missed.IsZero() {
		s.missed = a.at
	}
	if time.Since(s.missed) >= maxSilence {
		s.stop(errSilent)
	}
}

// take gives an answer to the question with its id. An answer to a question that waits no longer is late and is
// dropped, and so is an answer to no question at all, which is a mistake of the service.
func (s *stream) take(answer []byte) error {
	id := uint64(0)
	err := eachField(answer, func(f *field) error {
		if f.id == 5 {
			id = f.number
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if id <= s.last {
		s.missed = time.Time{}
	}
	a := s.waiting[id]
	if a == nil {
		return nil
	}
	delete(s.waiting, id)
	a.answer = append([]byte(nil), answer...)
	close(a.done)
	return nil
}

// run asks over a stream until ctx ends, which stop does, or the stream fails. It calls opened when the service has
// answered a first question, and ends the stream if opened returns an error. The error says why the stream could not be
// opened or has ended.
func (s *stream) run(ctx context.Context, conn *grpc.ClientConn, key string, opened func() error) error {
	defer s.end()
	if key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
	}
	late := time.AfterFunc(openTimeout, func() { s.stop(errUnopened) })
	defer late.Stop()
	on, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/warmpath.index.v1.Index/Ask")
	if err != nil {
		return err
	}
	// A question without a prompt is answered with an error. So the service knows Ask, and the key is right.
	first := rawMessage((&question{id: 1}).appendTo(nil))
	if err := on.SendMsg(&first); err != nil {
		return errors.Join(err, on.RecvMsg(&first)) // RecvMsg has the reason
	}
	var answer rawMessage
	if err := on.RecvMsg(&answer); err != nil {
		return err
	}
	if !late.Stop() {
		return errUnopened
	}
	if s.process, err = processOf(answer); err != nil {
		return err
	}
	if err := opened(); err != nil {
		return err
	}
	var sending sync.WaitGroup
	sending.Go(func() { // ends when ctx ends, below
		for {
			select {
			case <-ctx.Done():
				return
			case q := <-s.questions:
				if on.SendMsg(&q) != nil {
					return // RecvMsg has the reason
				}
			}
		}
	})
	defer sending.Wait()
	defer s.stop(nil)
	for {
		if err := on.RecvMsg(&answer); err != nil {
			return err
		}
		if err := s.take(answer); err != nil {
			return err
		}
	}
}

// end lets the questions without an answer return.
func (s *stream) end() {
	s.mu.Lock()
	s.waiting = nil
	s.mu.Unlock()
	close(s.ended)
}

// processOf returns the number of the service's process in an answer; 0: it has none.
func processOf(answer []byte) (process uint64, err error) {
	err = eachField(answer, func(f *field) error {
		if f.id == 9 {
			process = f.number
		}
		return nil
	})
	return process, err
}

// leads reports whether the stream reaches the process with that number. An older service has the number 0.
func (s *stream) leads(process uint64) bool {
	return process == 0 || s.process == 0 || process == s.process
}

// keepStream opens a stream to the service if there is none, and the service has gRPC at a port. The stream ends with
// ctx, or when a poll finds no service, or another process than the stream reaches.
func (c *Client) keepStream(ctx context.Context, port int, process uint64) {
	if port == 0 || port > 1<<16-1 {
		return
	}
	if s := c.stream.Load(); s != nil && !s.leads(process) {
		s.stop(errAstray)
	}
	select {
	case c.streaming <- struct{}{}: // there is room for one stream
	default:
		return
	}
	of, stop := context.WithCancelCause(ctx)
	s := &stream{questions: make(chan rawMessage, maxQueued), ended: make(chan struct{}), stop: stop, last: 1, waiting: map[uint64]*asked{}}
	c.current = s
	c.running.Go(func() { // Run ends ctx, and waits
		defer func() { <-c.streaming }()
		defer stop(nil)
		err := c.openStream(of, s, port, process)
		if cause := context.Cause(of); cause != nil && ctx.Err() == nil && !errors.Is(cause, context.Canceled) {
			err = cause // the error says only that the stream was stopped
		}
		if c.stream.CompareAndSwap(s, nil) {
			c.log.Info("the stream of questions to the index service has ended: questions go over HTTP until there is a new one", "service", c.config.URL, "reason", c.blank(err.Error()))
			c.pollSoon()
		} else {
			c.noStream(port, err)
		}
		select {
		case <-time.After(c.pauseAfter(err)):
		case <-ctx.Done():
		}
	})
}

// pauseAfter returns how long to wait after a stream that ended with an error. A service that was replaced by another
// process is asked again soon.
func (c *Client) pauseAfter(err error) time.Duration {
	if !errors.Is(err, errAstray) {
		return openEvery
	}
	again := time.Since(c.astrayAt) < 2*astrayEvery
	if c.astrayAt = time.Now(); again {
		return astrayEvery
	}
	return openEvery
}

// noStream logs once why a stream could not be opened, until one can be opened.
func (c *Client) noStream(port int, err error) {
	switch {
	case errors.Is(err, errAstray):
		if !c.astray {
			c.astray = true
			c.log.Warn(err.Error()+", so questions go over HTTP, which takes longer", "service", c.config.URL, "grpc", c.grpcAddress(port), "next",
				"let this port lead to the process that index.url reaches: in containers map it to the same number, and put no load balancer between; or give the service no --grpc-listen")
		}
	case c.warned.CompareAndSwap(false, true):
		c.log.Warn("the index service cannot be asked over gRPC, so questions go over HTTP, which takes longer", "service", c.config.URL, "grpc_port", port, "error", c.blank(err.Error()))
	}
}

func (c *Client) grpcAddress(port int) string { return net.JoinHostPort(c.host, strconv.Itoa(port)) }

// openStream connects to the service's port for gRPC, and asks over s until it ends. It asks only the process with that
// number.
func (c *Client) openStream(ctx context.Context, s *stream, port int, process uint64) error {
	secrets := insecure.NewCredentials()
	if c.secure {
		// The files are read again for each connection, because certificates are renewed.
		settings, err := c.config.TLS.Client()
		if err != nil {
			s.end()
			return err
		}
		secrets = credentials.NewTLS(settings)
	}
	conn, err := grpc.NewClient("passthrough:///"+c.grpcAddress(port), grpc.WithTransportCredentials(secrets),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return network.Of(c.network).Dial(ctx, "tcp", address)
		}),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithNoProxy(),
		grpc.WithInitialConnWindowSize(connWindow), grpc.WithInitialWindowSize(streamWindow),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		s.end()
		return err
	}
	defer func() { _ = conn.Close() }()
	return s.run(ctx, conn, c.config.Key, func() error {
		if !s.leads(process) {
			return errAstray
		}
		c.warned.Store(false)
		c.astray = false
		c.log.Info("asking the index service over gRPC", "service", c.config.URL, "grpc_port", port)
		c.stream.Store(s)
		return nil
	})
}

// declined returns the error of an answer that has a code in place of scores.
func declined(code uint32, text string) error {
	return fmt.Errorf("the index service answers %s: %s", codes.Code(code), api.Bounded(text))
}
