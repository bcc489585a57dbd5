package card

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
)

// capabilities opens a context of its own for a moment, and notes what the device and its kernel
// say they can do, and whether they would give us DEVX, which the driver does not use. known has
// what is no name or address of the card's own.
func capabilities(open func() (uverbs.Kernel, error)) (facts []doctor.Fact,
	known map[string]string) {
	if open == nil {
		return nil, nil
	}
	caps, err := deviceCaps(open, func(k uverbs.Kernel) uverbs.Kernel { return k })
	if err != nil {
		return []doctor.Fact{{Name: "capabilities", Value: err.Error()}}, nil
	}
	devx := "granted"
	if _, err := deviceCaps(open, func(k uverbs.Kernel) uverbs.Kernel {
		return devxKernel{k}
	}); err != nil {
		devx = "refused: " + kernelReason(err)
	}
	var list []string
	known = map[string]string{"DEVX": devx}
	for _, f := range caps.Facts() {
		if !strings.HasSuffix(f.Name, "GUID") {
			known[f.Name] = fmt.Sprint(f.Value)
		}
		list = append(list, fmt.Sprintf("%s=%v", f.Name, f.Value))
	}
	return []doctor.Fact{{Name: "capabilities", Value: strings.Join(list, " ")},
		{Name: "DEVX", Value: devx}}, known
}

// kernelReason returns the kernel's error, where it is one.
func kernelReason(err error) string {
	var refused *uverbs.Error
	if errors.As(err, &refused) {
		return refused.Errno.Error()
	}
	return err.Error()
}

func deviceCaps(open func() (uverbs.Kernel, error),
	wrap func(uverbs.Kernel) uverbs.Kernel) (caps uverbs.DeviceCaps, err error) {
	k, err := open()
	if err != nil {
		return caps, err
	}
	c, err := uverbs.Open(wrap(k), uverbs.Options{})
	if err != nil {
		return caps, err
	}
	return c.Caps(), c.Close()
}

// devxKernel asks for DEVX where the driver opens a context without.
type devxKernel struct{ uverbs.Kernel }

// flagsAt gives the offset of flags in struct mlx5_ib_alloc_ucontext_req_v2.
const flagsAt = 8

func (k devxKernel) Ioctl(buf []byte) error {
	if c, ok := parseCall(buf); ok && c.command == uverbs.CmdGetContext {
		flags := binary.NativeEndian.AppendUint32(nil, uverbs.Mlx5AllocUctxDEVX)
		if err := writeMemory(c.attrs[uverbs.AttrUHWIn].Data+flagsAt, flags); err != nil {
			return err
		}
	}
	return k.Kernel.Ioctl(buf)
}
