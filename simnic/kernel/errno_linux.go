package kernel

import (
	"errors"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// statusErrno maps a firmware status to an error number, as mlx5_core does (cmd_status_to_err in
// linux drivers/net/ethernet/mellanox/mlx5/core/cmd.c).
var statusErrno = map[simnic.Status]unix.Errno{
	simnic.StatusBadParam:   unix.EINVAL,
	simnic.StatusBadRes:     unix.EINVAL,
	simnic.StatusBadState:   unix.EINVAL,
	simnic.StatusResBusy:    unix.EBUSY,
	simnic.StatusLimit:      unix.ENOMEM,
	simnic.StatusNoResource: unix.EAGAIN,
}

// errnoOf returns the error number for an error of the core.
func errnoOf(err error) unix.Errno {
	var errno unix.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, simnic.ErrFlowConflict):
		return unix.EEXIST
	case errors.Is(err, simnic.ErrFlowFull):
		return unix.ENOSPC
	}
	if errno, ok := statusErrno[simnic.StatusOf(err)]; ok {
		return errno
	}
	return unix.EIO
}
