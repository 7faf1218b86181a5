package chat

import "fmt"

// RequestError says why the engine refuses a chat request before it reaches a template.
type RequestError struct{ Message string }

// Error returns why the request is refused.
func (e *RequestError) Error() string { return "read request: " + e.Message }

func refuse(format string, args ...any) error {
	return &RequestError{fmt.Sprintf(format, args...)}
}
