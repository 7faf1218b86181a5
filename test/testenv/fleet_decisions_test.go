package testenv_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
)

// decisionsIn reads the decisions of a log.
func decisionsIn(t *testing.T, file string) (all []decision) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for one := range strings.Lines(string(text)) {
		if !strings.HasSuffix(one, "\n") {
			break // the router was killed while it wrote
		}
		var d decision
		if err := json.Unmarshal([]byte(one), &d); err != nil {
			t.Fatalf("%s: %v: %s", file, err, one)
		}
		all = append(all, d)
	}
	return all
}

// decision is a line of a log of decisions.
type decision struct {
	Time      time.Time `json:"time"` // when the request came
	RequestID string    `json:"request_id"`
	Model     string    `json:"model"`
	Worker    string    `json:"worker"`
	Status    int       `json:"status"`
	Predicted int       `json:"predicted_tokens"`
	Reported  *int      `json:"reported_tokens"`
	FirstMS   float64   `json:"first_token_ms"`
	TotalMS   float64   `json:"total_ms"`
}
