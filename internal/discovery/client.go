package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/network"
)

// These constants bound the answers of a worker, in bytes. The /metrics of a busy engine with many adapters has some
// hundred kilobytes. SGLang's /server_info has some tens of kilobytes.
const (
	maxJSON    = 4 << 20
	maxMetrics = 16 << 20
	maxQuoted  = 200 // the part of an error answer that a message quotes
)

// connectTimeout bounds one connection to a worker. It is below the 4 s of a health check, so that the check's error
// says that the connection failed.
const connectTimeout = 3 * time.Second

// NewClient returns the HTTP client for probes. The client uses no proxy from the environment. It follows no redirects,
// so that a worker's key is sent to no other host. It keeps one idle connection to each worker. It connects over the
// network n; nil means the machine's network. peers says how workers are reached; nil means at their URLs, without
// further settings.
func NewClient(n network.Network, peers *network.Peers) *http.Client {
	return &http.Client{
		Transport: network.NewTransport(n, peers, network.TransportConfig{
			ConnectTimeout: connectTimeout, HeaderTimeout: 30 * time.Second, IdleTimeout: 30 * time.Second, IdlePerPeer: 1,
		}),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// asker sends questions to one worker.
type asker struct {
	client  *http.Client
	target  Target
	timeout time.Duration // time limit of one question
	header  http.Header   // further header fields of questions with a body; may be nil
}

// Question is a question of another package to a worker.
type Question struct {
	Method, Path string                // Path begins with a slash, and comes behind the worker's URL
	Body         any                   // sent as JSON; nil: no body
	Header       http.Header           // further header fields of a question with a body; may be nil
	Timeout      time.Duration         // from the question to the end of the answer
	Read         func(io.Reader) error // gets the body of an answer with status 200, at most 16 MiB; nil ignores the body
}

// Ask sends one question to a worker, with its key. client comes from NewClient. The error says what the worker
// answered, without the key and without the worker's URL.
func Ask(ctx context.Context, client *http.Client, t Target, q Question) error {
	read := q.Read
	if read == nil {
		read = discard
	}
	return asker{client, t, q.Timeout, q.Header}.ask(ctx, q.Method, q.Path, q.Body, maxMetrics, read)
}

// statusError is the error for an answer whose status is not 200.
type statusError struct {
	question string // method and path, for example "GET /version"
	status   int
	body     string
	key      bool // an API key was sent with the question
}

func (e *statusError) Error() string {
	msg := fmt.Sprintf("%s answered %d %s", e.question, e.status, http.StatusText(e.status))
	switch {
	case e.refused() && e.key:
		return msg + ": the worker refuses the api_key that the settings give for it"
	case e.refused():
		return msg + ": the worker refuses the router's questions without a key; write its key into the file (workers: [{url: …, api_key: …}]), or give --worker URL,api_key_file=FILE"
	case e.body != "":
		return msg + ": " + e.body
	}
	return msg
}

func (e *statusError) refused() bool {
	return e.status == http.StatusUnauthorized || e.status == http.StatusForbidden
}

// refusesUs reports whether the worker refused the question because the key was missing or wrong.
func refusesUs(err error) bool {
	var e *statusError
	return errors.As(err, &e) && e.refused()
}

// statusOf returns the status of an answer that was not 200; 0 if there was no answer.
func statusOf(err error) int {
	var e *statusError
	if errors.As(err, &e) {
		return e.status
	}
	return 0
}

// NotServed reports whether err says that the worker does not have the path of a question.
func NotServed(err error) bool {
	status := statusOf(err)
	return status == http.StatusNotFound || status == http.StatusMethodNotAllowed
}

// refused reports whether err shows that the worker's process has ended: the connection was refused, or reset by the
// other end.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}

// ask sends one question. It passes the body of the answer, at most limit bytes, to read.
func (a asker) ask(ctx context.Context, method, path string, in any, limit int64, read func(io.Reader) error) error {
	question := method + " " + path
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("%s: %w", question, err)
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.target.URL+path, body)
	if err != nil {
		return fmt.Errorf("%s: %w", question, err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
		maps.Copy(req.Header, a.header)
	}
	if a.target.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+a.target.APIKey)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", question, withoutURL(ctx, err, a.timeout))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		quoted, _ := io.ReadAll(io.LimitReader(resp.Body, maxQuoted))
		said := api.WithoutSecrets(string(quoted), a.target.APIKey)
		said = strings.Join(strings.Fields(strings.ToValidUTF8(said, "?")), " ")
		return &statusError{question, resp.StatusCode, said, a.target.APIKey != ""}
	}
	limited := &io.LimitedReader{R: resp.Body, N: limit}
	err = read(limited)
	if limited.N <= 0 {
		return fmt.Errorf("%s: the answer is longer than %d bytes", question, limit)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", question, withoutURL(ctx, err, a.timeout))
	}
	return nil
}

// errNoAnswer means that no answer came within the question's time limit.
var errNoAnswer = errors.New("no answer")

// withoutURL returns err without the URL and the operation, which net/http adds. If the time limit of the question
// caused err, withoutURL returns errNoAnswer with this limit.
func withoutURL(ctx context.Context, err error, timeout time.Duration) error {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return fmt.Errorf("%w within %v", errNoAnswer, timeout)
	}
	var e *url.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

func (a asker) getJSON(ctx context.Context, path string, out any) error {
	return a.ask(ctx, http.MethodGet, path, nil, maxJSON, decodeInto(out))
}

func (a asker) postJSON(ctx context.Context, path string, in, out any) error {
	return a.ask(ctx, http.MethodPost, path, in, maxJSON, decodeInto(out))
}

func discard(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

func decodeInto(out any) func(io.Reader) error {
	return func(r io.Reader) error {
		if err := json.NewDecoder(r).Decode(out); err != nil {
			return fmt.Errorf("read JSON: %w", err)
		}
		return nil
	}
}
