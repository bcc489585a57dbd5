package pcie

import (
	"errors"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// Statuses of the command interface that only this package uses (linux include/linux/mlx5/device.h,
// MLX5_CMD_STAT_*); the others are simnic's.
const (
	statusBadOp       simnic.Status = 0x02
	statusBadParam                  = simnic.StatusBadParam
	statusBadResource               = simnic.StatusBadRes
	statusBusy                      = simnic.StatusResBusy
	statusLimit                     = simnic.StatusLimit
	statusBadState                  = simnic.StatusBadSystem
	statusBadInput    simnic.Status = 0x50
)

// errorf returns the reason for refusing a command, with its status.
func errorf(s simnic.Status, format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), s)
}

// opcode is a firmware command (linux include/linux/mlx5/mlx5_ifc.h, MLX5_CMD_OP_*).
type opcode uint16

// commandSpec is one firmware command: its name, the minimum input and output bytes, and the
// function that runs it. run gets the whole input and a zeroed output; status and syndrome are
// filled in by execute.
type commandSpec struct {
	name    string
	in, out int
	run     func(f *Function, in, out []byte) error
}

// execute runs one command and writes status and syndrome into out.
func (f *Function) execute(in, out []byte) {
	op := opcode(be32(in, 0) >> 16)
	err := f.dispatch(op, in, out)
	f.count(op, err)
	if err == nil {
		return
	}
	clear(out)
	status := simnic.StatusInternal
	errors.As(err, &status)
	out[0] = byte(status)
	// our value: the opcode and the status, for the driver's log line
	syndrome := uint32(op)<<8 | uint32(status)
	out[4], out[5], out[6], out[7] = byte(syndrome>>24), byte(syndrome>>16),
		byte(syndrome>>8), byte(syndrome)
	f.log.Warn("firmware command refused", "command", op.String(), "error", err)
}

func (f *Function) dispatch(op opcode, in, out []byte) error {
	spec, ok := commands[op]
	switch {
	case !ok:
		return errorf(statusBadOp, "unknown command %#x", uint16(op))
	case len(in) < spec.in:
		return errorf(statusBadInput, "%d bytes of input, want %d", len(in), spec.in)
	}
	if _, err := f.context(in); err != nil {
		return err
	}
	if len(out) >= spec.out {
		return spec.run(f, in, out)
	}
	// The firmware of cards answers a query with what fits: rdma-core's tests ask for 2,064 bytes
	// of capabilities.
	whole := make([]byte, spec.out)
	if err := spec.run(f, in, whole); err != nil {
		return err
	}
	copy(out, whole)
	return nil
}

// String is the command's name in the manual, or its number.
func (op opcode) String() string {
	if s, ok := commands[op]; ok {
		return s.name
	}
	if s, ok := refusedNames[op]; ok {
		return s
	}
	return fmt.Sprintf("%#x", uint16(op))
}
