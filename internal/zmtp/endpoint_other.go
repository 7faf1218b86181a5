//go:build !unix

package zmtp

import "errors"

// errRefused matches no error: on these systems the user removes a stale socket file.
var errRefused = errors.New("connection refused")
