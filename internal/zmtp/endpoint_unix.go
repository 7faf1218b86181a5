//go:build unix

package zmtp

import "syscall"

const errRefused = syscall.ECONNREFUSED
