package inprocess

import "fmt"

// requestError says why the engine refuses a chat request before the engine renders the template.
type requestError struct{ Message string }

// Error returns why the request is refused.
func (e *requestError) Error() string { return "read request: " + e.Message }

func refuse(format string, args ...any) error {
	return &requestError{fmt.Sprintf(format, args...)}
}
