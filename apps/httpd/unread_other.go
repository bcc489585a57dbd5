//go:build !unix

package httpd

import "syscall"

func unreadOf(syscall.RawConn) (waits, known bool) { return false, false }
