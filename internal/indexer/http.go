package indexer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/api"
)

const (
	// maxBody bounds a body: maxTokens as JSON.
	maxBody = 48 << 20
	// maxUnknown bounds a body whose length is not announced. Until it has more than shortBody bytes, it counts as short.
	maxUnknown = 8 << 20
	shortBody  = 64 << 10
	// keptBody is the size of the largest buffer that is kept for another body.
	keptBody = 1 << 20
	// protobuf is the content type of the messages of indexer.proto.
	protobuf = "application/x-protobuf"
)

// handler returns the HTTP side of the service.
func (s *Service) handler() http.Handler {
	mux := http.NewServeMux()
	methods := map[string]string{}
	open := func(method, path string, h http.HandlerFunc) {
		methods[path] = method
		mux.HandleFunc(method+" "+path, h)
	}
	route := func(method, path string, success int, h func(http.ResponseWriter, *http.Request) error) {
		counted := s.Telemetry.IndexEndpoint(strings.TrimPrefix(path, "/"))
		open(method, path, func(w http.ResponseWriter, r *http.Request) {
			began, status := time.Now(), success
			err := s.admitHTTP(r)
			if err == nil {
				err = h(w, r)
			}
			if errors.Is(err, context.Canceled) && errors.Is(context.Cause(r.Context()), errStopping) {
				err = errStopping
			}
			if err != nil {
				status = statusOf(err)
				if !errors.Is(err, errCut) {
					problem(w, status, err)
				}
			}
			counted(status, time.Since(began))
		})
	}
	open("GET", "/health", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"status":"ok"}`+"\n")
	})
	if s.Metrics != nil {
		open("GET", "/metrics", s.Metrics.ServeHTTP)
	}
	for path, more := range s.More {
		open("GET", path, func(w http.ResponseWriter, r *http.Request) {
			if err := s.admitHTTP(r); err != nil {
				problem(w, statusOf(err), err)
				return
			}
			more.ServeHTTP(w, r)
		})
	}
	route("POST", "/query", http.StatusOK, s.query)
	route("POST", "/query_by_hash", http.StatusOK, s.query)
	route("POST", "/register", http.StatusCreated, s.registerHTTP)
	route("POST", "/unregister", http.StatusOK, s.unregisterHTTP)
	route("GET", "/workers", http.StatusOK, s.workersHTTP)
	route("GET", "/dump", http.StatusOK, s.dumpHTTP)
	route("GET", "/changes", http.StatusOK, s.changesHTTP)
	route("GET", "/peers", http.StatusOK, func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Type", "application/json")
		_, err := io.WriteString(w, "[]\n") // each service follows the events itself, so it needs no peers
		return cut(err)
	})
	for path, why := range map[string]string{
		"/register_peer":   "this service has no peers: each service follows the events of the engines itself, so register the same workers here",
		"/deregister_peer": "this service has no peers",
		"/reopen_logs":     "this service logs to the standard error, so there is no file to open again",
	} {
		route("POST", path, http.StatusOK, func(http.ResponseWriter, *http.Request) error { return fmt.Errorf("%w: %s", errNotHere, why) })
	}
	for path, method := range methods {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", method)
			problem(w, http.StatusMethodNotAllowed, fmt.Errorf("%s answers only %s", path, method))
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		problem(w, http.StatusNotFound, fmt.Errorf("there is no %s here; try POST /query, POST /query_by_hash, POST /register, POST /unregister, "+
			"GET /workers, GET /dump, GET /changes, GET /metrics or GET /health", api.Bounded(r.URL.Path)))
	})
	// A web page in a browser on this machine can send requests to loopback addresses, too. It must not register workers.
	return http.NewCrossOriginProtection().Handler(mux)
}

// admitHTTP returns why a request is refused by its header; nil: it is not.
func (s *Service) admitHTTP(r *http.Request) error {
	switch {
	case s.Certificates.MissingCertificate(r.TLS):
		return errCertificate
	case !s.allowed(r.Header.Get("Authorization")):
		return errKey
	}
	return nil
}

// errNotHere means that an endpoint of Dynamo's standalone indexer has no counterpart.
var errNotHere = errors.New("not available")

// errCut means that an answer could not be written to its end: the client left.
var errCut = errors.New("the client left")

// cut returns err, a failed write, as errCut.
func cut(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errCut, err)
}

// statusOf returns the HTTP status of an error.
func statusOf(err error) int {
	var bad *api.Error
	switch {
	case errors.Is(err, errCut), errors.Is(err, context.Canceled):
		return 499
	case errors.Is(err, errKey), errors.Is(err, errCertificate):
		return http.StatusUnauthorized
	case errors.Is(err, errNoModel), errors.Is(err, errAbsent), errors.Is(err, errNotHere), errors.Is(err, warmpath.ErrUnknownModel):
		return http.StatusNotFound
	case errors.Is(err, errConflict), errors.Is(err, warmpath.ErrOtherKeys):
		return http.StatusConflict
	case errors.Is(err, errLong):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errFull), errors.Is(err, errBusy), errors.Is(err, errStopping), errors.Is(err, errLate):
		return http.StatusServiceUnavailable
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	case errors.Is(err, errNoTokens):
		return http.StatusUnprocessableEntity
	case errors.As(err, &bad):
		return bad.Status
	}
	return http.StatusBadRequest
}

// problem answers with an error, in the shape of Dynamo's standalone indexer.
func problem(w http.ResponseWriter, status int, err error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	switch status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="warmpath"`)
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	_, _ = w.Write(append(appendQuoted([]byte(`{"error":`), err.Error()), "}\n"...))
}

var errLong = fmt.Errorf("the body is longer than %d bytes, or than %d without Content-Length", maxBody, maxUnknown)

// buffers are the buffers of bodies and answers.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// withBody calls use with the body of r, which use must not keep.
func (s *Service) withBody(r *http.Request, use func(body []byte) error) error {
	if r.ContentLength > maxBody {
		return errLong
	}
	size, most := r.ContentLength, int64(maxBody)
	if size < 0 { // not known, and most likely short
		size, most = shortBody, maxUnknown
	}
	if !s.bodies.take(size) {
		return errBodies
	}
	defer func() { s.bodies.give(size) }()
	b := buffers.Get().(*bytes.Buffer)
	defer func() {
		if b.Cap() <= keptBody {
			b.Reset()
			buffers.Put(b)
		}
	}()
	b.Grow(int(min(max(r.ContentLength, 0), keptBody)) + bytes.MinRead)
	n, err := b.ReadFrom(io.LimitReader(r.Body, size+1))
	if err == nil && n > size && size < most {
		if !s.bodies.take(most - size) {
			return errBodies
		}
		size = most
		var more int64
		more, err = b.ReadFrom(io.LimitReader(r.Body, most+1-n))
		n += more
	}
	switch {
	case err != nil:
		return cut(err)
	case n > most:
		return errLong
	}
	return use(b.Bytes())
}

// query answers POST /query and POST /query_by_hash. The two differ only in the names that clients use.
func (s *Service) query(w http.ResponseWriter, r *http.Request) error {
	return s.withBody(r, func(body []byte) error {
		q := s.questions.Get().(*question)
		defer func() {
			q.reset()
			s.questions.Put(q)
		}()
		binary := r.Header.Get("Content-Type") == protobuf
		var err error
		if binary {
			err = q.decode(body)
		} else {
			err = q.readQuery(body)
		}
		if err == nil {
			err = s.score(r.Context(), q)
		}
		if err != nil {
			return err
		}
		out := buffers.Get().(*bytes.Buffer)
		defer func() {
			out.Reset()
			buffers.Put(out)
		}()
		text := out.AvailableBuffer()
		h := w.Header()
		if binary {
			text = q.answer.appendTo(text)
			h["Content-Type"] = protobufHeader
		} else {
			tenant := ""
			if q.tenant {
				tenant = q.answer.group
			}
			text = q.answer.appendJSON(text, tenant)
			h["Content-Type"] = jsonHeader
		}
		h["Content-Length"] = []string{strconv.Itoa(len(text))}
		_, err = w.Write(text)
		out.Write(text) // so that the buffer keeps the memory
		return cut(err)
	})
}

// Header values that are set without an allocation. They are never changed.
var (
	protobufHeader = []string{protobuf}
	jsonHeader     = []string{"application/json"}
)

func (s *Service) registerHTTP(w http.ResponseWriter, r *http.Request) error {
	return s.withBody(r, func(body []byte) error {
		reg, err := new(registration), error(nil)
		if r.Header.Get("Content-Type") == protobuf {
			err = reg.decode(body)
		} else {
			reg, err = readRegistration(body)
		}
		if err != nil {
			return err
		}
		listed, err := s.register(reg)
		if err != nil {
			return err
		}
		w.Header()["Content-Type"] = jsonHeader
		w.WriteHeader(http.StatusCreated)
		out := strconv.AppendBool([]byte(`{"status":"ok","listed":`), listed)
		if reg.warning != "" {
			out = appendQuoted(append(out, `,"warning":`...), reg.warning)
		}
		_, err = w.Write(append(out, "}\n"...))
		return cut(err)
	})
}

func (s *Service) unregisterHTTP(w http.ResponseWriter, r *http.Request) error {
	return s.withBody(r, func(body []byte) error {
		gone, err := readRemoval(body)
		if err == nil {
			err = s.registry.unregister(gone)
		}
		if err != nil {
			return err
		}
		w.Header()["Content-Type"] = jsonHeader
		_, err = io.WriteString(w, `{"status":"ok"}`+"\n")
		return cut(err)
	})
}

func (s *Service) workersHTTP(w http.ResponseWriter, r *http.Request) error {
	if r.Header.Get("Accept") == protobuf {
		w.Header()["Content-Type"] = protobufHeader
		_, err := w.Write(s.encodedList())
		return cut(err)
	}
	all := s.list()
	w.Header()["Content-Type"] = jsonHeader
	out := make([]*listedWorker, len(all.workers))
	for i := range all.workers {
		out[i] = &all.workers[i]
	}
	return cut(json.NewEncoder(w).Encode(out))
}

// lines returns a function that writes lines of an answer without an end, and one that sends what was written.
func lines(w http.ResponseWriter) (write func([]byte) error, flush func() error) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	control := http.NewResponseController(w)
	var pending []byte
	send := func() error {
		_ = control.SetWriteDeadline(time.Now().Add(lineTimeout))
		_, err := w.Write(pending)
		pending = pending[:0]
		return cut(err)
	}
	write = func(line []byte) error {
		pending = append(pending, line...)
		if len(pending) < lineBytes {
			return nil
		}
		return send()
	}
	return write, func() error {
		if err := send(); err != nil {
			return err
		}
		err := control.Flush()
		_ = control.SetWriteDeadline(time.Time{}) // a stream may have nothing to send for hours; HTTP/2 would end it
		return cut(err)
	}
}

// lineTimeout is how long a reader may take for one piece of a stream or a dump: lineBytes over HTTP, a message over
// gRPC. A reader that takes longer loses its connection, because others wait for its place, such as that of the only
// dump. With this size, a reader of 26 KB/s is fast enough.
const (
	lineTimeout = 10 * time.Second
	lineBytes   = 256 << 10
)

// selected returns which models a request for the changes or a dump is about. more are further parameters that the
// request may have; any other is an error.
func selected(about url.Values, more ...string) (selection, error) {
	known := append([]string{"model_name", "tenant_id", "routing_group"}, more...)
	for name := range about {
		if !slices.Contains(known, name) { // everything would be sent, or too much
			return selection{}, fmt.Errorf("there is no parameter %s; use %s", api.Quoted(name), strings.Join(known, ", "))
		}
		if group := name == "tenant_id" || name == "routing_group"; group && about.Get(name) == "" { // elsewhere it means the group default
			return selection{}, fmt.Errorf("%s is empty: give a group, such as default, or leave it out, which means all groups", name)
		}
	}
	group, err := oneOf("tenant_id", about.Get("tenant_id"), about.Get("routing_group"))
	return selection{about.Get("model_name"), group}, err
}

func (s *Service) dumpHTTP(w http.ResponseWriter, r *http.Request) error {
	about := r.URL.Query()
	of, err := selected(about, "instance_id")
	if err != nil {
		return err
	}
	write, flush := lines(w)
	var line []byte
	err = s.dump(r.Context(), &dumpRequest{of, about.Get("instance_id")}, func(one *run) error {
		line = one.appendJSON(line[:0])
		return write(line)
	})
	if err != nil {
		return err
	}
	if err := write([]byte(`{"end":true}` + "\n")); err != nil {
		return err
	}
	return flush()
}

func (s *Service) changesHTTP(w http.ResponseWriter, r *http.Request) error {
	of, err := selected(r.URL.Query())
	if err != nil {
		return err
	}
	write, flush := lines(w)
	var line []byte
	return s.streamChanges(r.Context(), &changeRequest{of}, func(one *change) error {
		line = one.appendJSON(line[:0])
		return write(line)
	}, flush)
}
