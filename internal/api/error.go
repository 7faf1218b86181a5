package api

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Error is the answer to a request that cannot be served. It has the HTTP status and the fields of the dialect's error
// object. The message says what is wrong and what to do next. Only this file turns errors into statuses.
type Error struct {
	Status  int
	Type    string // OpenAI's error type, e.g. invalid_request_error
	Code    string // a stable word for programs; may be empty
	Param   string // the request's key that is wrong; may be empty
	Message string
	// RetryAfter, when positive, is sent as the Retry-After header, rounded up to seconds.
	RetryAfter time.Duration
	// Cause is the error behind this one. It is for logs; clients do not get it.
	Cause error
}

// Error returns the message and the cause.
func (e *Error) Error() string {
	if e.Cause != nil {
		return e.Message + ": " + e.Cause.Error()
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// OpenAI's error types.
const (
	typeInvalid     = "invalid_request_error"
	typeNotFound    = "not_found_error"
	typeRateLimit   = "rate_limit_error"
	typeServer      = "server_error"
	typeUnavailable = "service_unavailable_error"
)

// Invalid returns the error for a request that cannot be read (400). param may be empty.
func Invalid(param, message string) *Error {
	return &Error{Status: http.StatusBadRequest, Type: typeInvalid, Code: "invalid_request", Param: param,
		Message: message}
}

// TooLarge returns the error for a request body of more than limit bytes (413).
func TooLarge(limit int64) *Error {
	return &Error{Status: http.StatusRequestEntityTooLarge, Type: typeInvalid, Code: "request_too_large",
		Message: "the request body is larger than " + strconv.FormatInt(limit, 10) +
			" bytes; send less, or have the operator raise body.max_bytes"}
}

// BodyTimeout returns the error for a request body that stopped arriving (408). after is the time without a byte.
func BodyTimeout(after time.Duration) *Error {
	return &Error{Status: http.StatusRequestTimeout, Type: typeInvalid, Code: "request_timeout",
		Message: "no byte of the request body came for " + after.String() + "; send the request again"}
}

// BodySlow returns the error for a request body that took too long to arrive (408). after is the limit for the whole
// body.
func BodySlow(after time.Duration) *Error {
	return &Error{Status: http.StatusRequestTimeout, Type: typeInvalid, Code: "request_timeout",
		Message: "the request body did not arrive within " + after.String() +
			"; send it faster, or have the operator raise body.timeout"}
}

// UnknownModel returns the error for a model that no worker serves (404).
func UnknownModel(model string) *Error {
	return &Error{Status: http.StatusNotFound, Type: typeNotFound, Code: "model_not_found", Param: "model",
		Message: "the model " + Quoted(model) + " is served by no worker; GET /v1/models lists those that are"}
}

// UnknownResponse returns the error for the id of a response that the router does not know (404).
func UnknownResponse(id string) *Error {
	return &Error{Status: http.StatusNotFound, Type: typeInvalid, Code: "response_not_found",
		Message: "the response " + Quoted(id) + " is not known here: it does not exist, belongs to another API key, is older " +
			"than a day, or was made before the router started; send the conversation as input, without the id"}
}

// LostResponse returns the error for a response whose worker left or restarted (404).
func LostResponse(id string) *Error {
	return &Error{Status: http.StatusNotFound, Type: typeInvalid, Code: "response_lost",
		Message: "the response " + Quoted(id) + " is lost: the worker that made it has left or restarted; send the " +
			"conversation as input, without the id"}
}

// NoModelYet returns the error for a model that no known worker serves, while some workers have not reported their
// models yet (503). The error occurs while the router starts, or if these workers never answer. waiting is the number
// of these workers. If workers is 0, there are no workers.
func NoModelYet(model string, waiting, workers int) *Error {
	e := NoWorker(nil)
	e.Message = "there are no workers: none is listed, and no file, DNS name or operator names one now"
	if workers > 0 {
		e.Message = "the model " + Quoted(model) + " is served by no worker that has answered so far, and " +
			strconv.Itoa(waiting) + " of " + strconv.Itoa(workers) +
			" have not; try again in a moment, or have the operator look up why in /admin/workers"
	}
	return e
}

// PeerPath reports whether a path is one with which other routers add, remove and list workers. The operators' listener
// may serve these paths.
func PeerPath(path string) bool {
	return path == "/add_worker" || path == "/remove_worker" || path == "/list_workers"
}

// operators says where the operators' listener is.
const operators = "at the operators' listener (--admin-listen of serve, 127.0.0.1:9090 by default)"

// UnknownPath returns the error for an unknown path (404).
func UnknownPath(method, path string) *Error {
	advice := "; try POST /v1/chat/completions, POST /v1/completions or GET /v1/models"
	switch {
	case path == "/metrics" || strings.HasPrefix(path, "/admin/"):
		advice = ": it is " + operators
	case PeerPath(path):
		advice = ": with admin.peer_paths it is " + operators
	case strings.HasPrefix(path, "/v1/v1/"):
		advice = ": the client adds /v1 to a base URL that has it; remove one of them"
	}
	return &Error{Status: http.StatusNotFound, Type: typeInvalid, Code: "unknown_url",
		Message: "there is no " + Bounded(method) + " " + Bounded(path) + " here" + advice}
}

// MethodNotAllowed returns the error for a request with the wrong method (405).
func MethodNotAllowed(method, path, allowed string) *Error {
	return &Error{Status: http.StatusMethodNotAllowed, Type: typeInvalid, Code: "method_not_allowed",
		Message: Bounded(path) + " does not answer " + Bounded(method) + ", only " + allowed}
}

// NoWorker returns the error for a request that no worker can take now (503).
func NoWorker(cause error) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: typeUnavailable, Code: "no_worker", RetryAfter: time.Second,
		Message: "no worker can take the request now; try again in a moment", Cause: cause}
}

// holdRetry is when a client should try again after its request was held, or could not be held. Active checks of
// workers run every few seconds.
const holdRetry = 5 * time.Second

// HoldFull returns the error for a request when no worker can take it and no more requests are held (503).
func HoldFull() *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: typeUnavailable, Code: CodeHoldFull, RetryAfter: holdRetry,
		Message: "no worker can take the request now, and too many requests wait for one; try again in " + seconds(holdRetry)}
}

// HoldTimeout returns the error for a request for which no worker was found as long as it may be held (503). cause is
// why no worker could take it.
func HoldTimeout(held time.Duration, cause error) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: typeUnavailable, Code: CodeHoldTimeout, RetryAfter: holdRetry,
		Message: "no worker could take the request for " + held.Round(time.Millisecond).String() + "; try again in " +
			seconds(holdRetry), Cause: cause}
}

// The codes of errors that say that no worker can take a request now.
const (
	CodeHoldFull         = "hold_full"
	CodeHoldTimeout      = "hold_timeout"
	CodeAdapterNotLoaded = "adapter_not_loaded"
	CodeSaturated        = "saturated"
	CodeQueueFull        = "queue_full"
	CodeQueueTooLong     = "queue_too_long"
	CodeQueueTimeout     = "queue_timeout"
)

// AdapterNotLoaded returns the error for a LoRA adapter that no worker could load (503). words are the engine's, or say
// in another way what is wrong.
func AdapterNotLoaded(name, words string, retry time.Duration) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: typeUnavailable, Code: CodeAdapterNotLoaded, RetryAfter: retry,
		Message: "the adapter " + Quoted(name) + " is not loaded: " + Bounded(words) + "; try again in " + seconds(retry)}
}

// Saturated returns the error for a request when all workers are saturated (429).
func Saturated(cause error) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: typeRateLimit, Code: CodeSaturated, RetryAfter: time.Second,
		Message: "all workers are busy; try again in a moment", Cause: cause}
}

// Limited returns the error for a request when all workers answered 429, and the pauses that they asked for have not
// ended (429).
func Limited(retry time.Duration) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: typeRateLimit, Code: "workers_limited", RetryAfter: retry,
		Message: "all workers answered 429 and get no requests for now; try again in " + seconds(retry)}
}

// QueueFull returns the error for a request when the queue is full (429).
func QueueFull(retry time.Duration) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: typeRateLimit, Code: CodeQueueFull, RetryAfter: retry,
		Message: "all workers are busy and the queue is full; try again in " + seconds(retry)}
}

// QueueTooLong returns the error for a request that would have to wait longer than it may (429).
func QueueTooLong(retry time.Duration) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: typeRateLimit, Code: CodeQueueTooLong, RetryAfter: retry,
		Message: "all workers are busy and the queue is longer than the request may wait; try again in " + seconds(retry)}
}

// QueueTimeout returns the error for a request that has waited as long as it may (429).
func QueueTimeout(waited, retry time.Duration) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: typeRateLimit, Code: CodeQueueTimeout, RetryAfter: retry,
		Message: "all workers were busy for " + waited.Round(time.Millisecond).String() + "; try again in " + seconds(retry)}
}

// NoPlace returns the error for a request on a connection beyond the limit of connections (503).
func NoPlace() *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: typeUnavailable, Code: "too_many_connections",
		RetryAfter: 2 * time.Second,
		Message: "the router has no place for another connection; try again in a moment, or have the operator raise its " +
			"limit of file descriptors"}
}

// Draining returns the error for a request that waits for a worker when the process shuts down (503).
func Draining() *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: typeUnavailable, Code: "draining", RetryAfter: time.Second,
		Message: "the gateway is about to stop; send the request again, it will reach another one"}
}

// Cut returns the error for a request that is still under way when the process stops (503). If its stream has begun,
// the stream ends with this error as an error event.
func Cut() *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: typeUnavailable, Code: "draining", RetryAfter: time.Second,
		Message: "the gateway stops before the answer was complete; what came so far is not the whole answer, send the " +
			"request again"}
}

// CertificateMissing returns the error for a request without a client certificate where one is required (401).
func CertificateMissing() *Error {
	return &Error{Status: http.StatusUnauthorized, Type: typeInvalid, Code: "client_certificate",
		Message: "the request came without a client certificate: send one of an authority that the operator trusts (tls.client_ca_file)"}
}

// KeyMissing returns the error for a request without a key when tenants are configured (401).
func KeyMissing() *Error {
	return &Error{Status: http.StatusUnauthorized, Type: typeInvalid, Code: "missing_api_key",
		Message: "the request has no API key: send Authorization: Bearer KEY or X-Api-Key: KEY"}
}

// KeyUnknown returns the error for a key that belongs to no tenant (401).
func KeyUnknown() *Error {
	return &Error{Status: http.StatusUnauthorized, Type: typeInvalid, Code: "invalid_api_key",
		Message: "the API key is not known here: check it, or ask the operator to add its SHA-256 to the tenants"}
}

// TokenInvalid returns the error for a token that is not valid (401). why has the form "the token is not valid: …".
func TokenInvalid(why error) *Error {
	return &Error{Status: http.StatusUnauthorized, Type: typeInvalid, Code: "invalid_token", Message: why.Error() + "; get a new one"}
}

// TokenUnnamed returns the error for a token that has no text in the claim that names the tenant (401).
func TokenUnnamed(claim string) *Error {
	return &Error{Status: http.StatusUnauthorized, Type: typeInvalid, Code: "unknown_tenant",
		Message: "the token names no tenant: its claim " + Quoted(claim) + " is missing or is no text; get a token with it, or have the operator correct jwt.tenant_claim"}
}

// TokenOfNobody returns the error for a valid token of a tenant that is not configured (401).
func TokenOfNobody(name string) *Error {
	return &Error{Status: http.StatusUnauthorized, Type: typeInvalid, Code: "unknown_tenant",
		Message: "the token is valid, but its tenant " + Quoted(name) + " is not known here; ask the operator to add it to the tenants"}
}

// IssuerAbsent returns the error for a token while the keys of its issuer are not known (503).
func IssuerAbsent(cause error) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: typeUnavailable, Code: "issuer_unreachable", RetryAfter: 5 * time.Second,
		Message: "the token cannot be checked, because its issuer has not answered yet; try again in a moment", Cause: cause}
}

// TenantLimited returns the error for a request beyond a limit of its tenant (429). what names the limit.
func TenantLimited(what string, retry time.Duration) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: typeRateLimit, Code: what + "_limited", RetryAfter: retry,
		Message: "the limit of " + what + " for this API key is reached; try again in " + seconds(retry)}
}

// ModelForbidden returns the error for a model that the tenant may not use (404). It is the same whether the model
// exists or not.
func ModelForbidden(model string) *Error {
	return &Error{Status: http.StatusNotFound, Type: typeNotFound, Code: "model_not_found", Param: "model",
		Message: "the model " + Quoted(model) + " does not exist, or this API key may not use it; GET /v1/models lists those that it may use"}
}

// ModelOfForm returns the error for a form that names a model for which another takes the request (400).
func ModelOfForm(asked, model string) *Error {
	return Invalid("model", "the model "+Quoted(asked)+" stands for "+Quoted(model)+" here, and the router does not change forms; name "+Quoted(model)+" in the form")
}

// Unsalted returns the error for a request whose cached prompt could not be kept apart from other tenants' (403).
func Unsalted() *Error {
	return &Error{Status: http.StatusForbidden, Type: typeInvalid, Code: "cache_salt_unsupported",
		Message: "the engines of this model take no cache_salt at this path, so this tenant's cached prompts could not be " +
			"kept apart from others'; use /v1/chat/completions"}
}

// seconds returns d for a message, rounded up.
func seconds(d time.Duration) string { return wholeSeconds(d) + " s" }

// wholeSeconds returns the number of seconds in d, rounded up.
func wholeSeconds(d time.Duration) string {
	return strconv.Itoa(int((d + time.Second - 1) / time.Second))
}

// Exhausted returns the error for a request when this machine cannot open another connection to a worker (503).
func Exhausted(cause error) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: typeUnavailable, Code: "no_connection",
		RetryAfter: time.Second,
		Message:    "the gateway has no free connection now; try again in a moment", Cause: cause}
}

// WorkerUnreachable returns the error for a worker that did not answer (502).
func WorkerUnreachable(cause error) *Error {
	return &Error{Status: http.StatusBadGateway, Type: typeServer, Code: "worker_unreachable",
		Message: "the worker did not answer; try again", Cause: cause}
}

// WorkerTimeout returns the error for a worker that did not answer in time (504).
func WorkerTimeout(cause error) *Error {
	return &Error{Status: http.StatusGatewayTimeout, Type: typeServer, Code: "worker_timeout",
		Message: "the worker did not answer in time; try again, or ask for fewer tokens", Cause: cause}
}

// WorkerBroke returns the error for an answer that is incomplete or breaks the protocol (502). If its stream has begun,
// the stream ends with this error as an error event.
func WorkerBroke(cause error) *Error {
	return &Error{Status: http.StatusBadGateway, Type: typeServer, Code: "worker_failed",
		Message: "the worker failed before the answer was complete; what came so far is not the whole answer, send the " +
			"request again", Cause: cause}
}

// WorkerUseless returns the error for an answer that cannot be used, and of which no byte was forwarded (502).
func WorkerUseless(cause error) *Error {
	return &Error{Status: http.StatusBadGateway, Type: typeServer, Code: "worker_failed",
		Message: "the worker's answer was useless, and no other worker could answer; try again", Cause: cause}
}

// LongRefusal returns the error that replaces a worker's refusal if the text of the refusal is too long to be buffered.
// The error has the worker's status.
func LongRefusal(status int) *Error {
	return &Error{Status: status, Type: typeServer, Code: "worker_refused",
		Message: "the worker refused the request with status " + strconv.Itoa(status) +
			"; its text is left out because it is too long"}
}

// CauseOf returns the cause of err, without the message for the client: for the log and for /admin/decisions.
func CauseOf(err error) error {
	var e *Error
	if errors.As(err, &e) && e.Cause != nil {
		return e.Cause
	}
	return err
}

// Internal returns the error for a fault of the router itself (500). Clients do not see the cause.
func Internal(cause error) *Error {
	return &Error{Status: http.StatusInternalServerError, Type: typeServer, Code: "internal_error",
		Message: "the gateway failed; its log has the reason", Cause: cause}
}

// AsError returns err as an *Error. If err is not an *Error, it returns Internal(err).
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Internal(err)
}

// WriteError answers with err in the dialect's form. Nothing of the answer may have been written before.
func WriteError(w http.ResponseWriter, d Dialect, err error) {
	e := AsError(err)
	body := append(d.AppendError(nil, e), '\n')
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if e.RetryAfter > 0 {
		h.Set("Retry-After", wholeSeconds(e.RetryAfter))
	}
	w.WriteHeader(e.Status)
	w.Write(body) // an error means that the client is gone
}
