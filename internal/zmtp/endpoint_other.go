//go:build !unix

package zmtp

import "errors"

// errRefused matches nothing: elsewhere a stale socket file is left for the user to remove.
var errRefused = errors.New("connection refused")
