package kernel

import (
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// stamps names the time stamps that the creator of a completion queue requires; it applies to the
// queues that complete into it.
type stamps struct{ real, freeRunning bool }

// stampFormat returns the format of time stamps of a queue (get_ts_format in
// drivers/infiniband/hw/mlx5/qp.c).
func (s stamps) stampFormat(have simnic.TimestampCap) (simnic.TimestampFormat, unix.Errno) {
	switch {
	case s.real && have == simnic.StampsFreeRunning,
		!s.real && s.freeRunning && have == simnic.StampsRealTime:
		return 0, unix.EOPNOTSUPP
	case s.real:
		return simnic.RealTime, 0
	case have == simnic.StampsRealTime:
		return simnic.DefaultStamps, 0
	}
	return simnic.FreeRunning, 0
}
