//go:build !unix

package zmtp

import "errors"

// errRefused matches no error. So on these systems a stale socket file stays, and the user has to remove it.
var errRefused = errors.New("connection refused")
