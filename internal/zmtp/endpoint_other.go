//go:build !unix

package zmtp

import "errors"

// errRefused matches no error of these systems. So a stale socket file is never removed here, and the user has to
// remove the file.
var errRefused = errors.New("connection refused")
