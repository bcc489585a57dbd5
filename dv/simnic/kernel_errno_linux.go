package simnic

import (
	"errors"

	"golang.org/x/sys/unix"
)

// statusErrno is how mlx5_core turns a refusal of the firmware into an error
// number (cmd_status_to_err in linux drivers/net/ethernet/mellanox/mlx5/core/cmd.c).
var statusErrno = map[Status]unix.Errno{
	StatusBadParam:   unix.EINVAL,
	StatusBadRes:     unix.EINVAL,
	StatusBadState:   unix.EINVAL,
	StatusResBusy:    unix.EBUSY,
	StatusLimit:      unix.ENOMEM,
	StatusNoResource: unix.EAGAIN,
}

// errnoOf is the error number for what the core returned.
func errnoOf(err error) unix.Errno {
	var errno unix.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, ErrFlowConflict):
		return unix.EEXIST
	case errors.Is(err, ErrFlowFull):
		return unix.ENOSPC
	}
	if errno, ok := statusErrno[StatusOf(err)]; ok {
		return errno
	}
	return unix.EIO
}
