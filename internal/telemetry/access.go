package telemetry

import "time"

// Access is one line of the access log. The names of its fields do not change; the fields that /admin/decisions also
// has are the same. A field that does not apply is absent.
type Access struct {
	Time      time.Time `json:"time"`
	RequestID string    `json:"request_id,omitempty"`
	TraceID   string    `json:"trace_id,omitempty"` // set if the request is a part of a recorded trace
	Client    string    `json:"client"`             // the address of the connection, without the port
	// ForwardedFor is the header X-Forwarded-For of the request, which any client can write.
	ForwardedFor string `json:"forwarded_for,omitempty"`
	Method       string `json:"method"`
	Path         string `json:"path"`
	Protocol     string `json:"protocol"`
	// Status is the HTTP status that the client got. 499 means that the client left before the end of the answer, and 0
	// that the connection was cut without an answer.
	Status   int     `json:"status"`
	BytesIn  int64   `json:"bytes_in"`  // length of the body that the router read
	BytesOut int64   `json:"bytes_out"` // length of the body that was written to the client
	TotalMS  float64 `json:"total_ms"`

	// Refused is the code of the router's error if no worker was asked.
	Refused string `json:"refused,omitempty"`
	Tenant  string `json:"tenant,omitempty"`
	Model   string `json:"model,omitempty"`
	Stream  bool   `json:"stream,omitempty"`

	Worker          string  `json:"worker,omitempty"`
	Rank            int     `json:"rank,omitempty"`
	Attempts        int     `json:"attempts,omitempty"`
	Policy          string  `json:"policy,omitempty"`
	Branch          string  `json:"branch,omitempty"`
	PromptTokens    int     `json:"prompt_tokens,omitempty"`
	PredictedTokens int     `json:"predicted_tokens,omitempty"`
	ReportedTokens  *int    `json:"reported_tokens,omitempty"`
	OutputTokens    *int    `json:"output_tokens,omitempty"`
	QueueMS         float64 `json:"queue_ms,omitempty"`
	HeldMS          float64 `json:"held_ms,omitempty"`
	FirstTokenMS    float64 `json:"first_token_ms,omitempty"`
	Finish          string  `json:"finish,omitempty"`
	Error           string  `json:"error,omitempty"`
}

// Take copies the facts of a routed or refused model request from rec.
func (a *Access) Take(rec *Record) {
	a.TraceID = rec.TraceID
	a.RequestID, a.Tenant, a.Model, a.Stream = rec.RequestID, rec.Tenant, rec.Model, rec.Stream
	a.Worker, a.Rank, a.Attempts, a.Policy, a.Branch = rec.Worker, rec.Rank, rec.Attempts, rec.Policy, rec.Branch
	a.PromptTokens, a.PredictedTokens = rec.PromptTokens, rec.PredictedTokens
	a.ReportedTokens, a.OutputTokens = rec.ReportedTokens, rec.OutputTokens
	a.QueueMS, a.HeldMS, a.FirstTokenMS, a.Finish, a.Error = rec.QueueMS, rec.HeldMS, rec.FirstTokenMS, rec.Finish, rec.Error
	if rec.Status != 0 {
		a.Status = rec.Status
	}
}
