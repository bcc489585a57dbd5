package wire

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// TAP is a Linux network interface as a wire: what the port sends the kernel
// receives on the interface, and the other way round. It carries unsegmented
// frames and unfinished checksums both ways (IFF_VNET_HDR).
type TAP struct {
	fileWire
	name string
}

var _ Wire = (*TAP)(nil)

// Flags of TUNSETOFFLOAD (include/uapi/linux/if_tun.h). The last two are known
// since linux 6.2 and must be given together.
const (
	tunCsum   = 0x01
	tunTSO4   = 0x02
	tunTSO6   = 0x04
	tunTSOECN = 0x08
	tunUSO4   = 0x20
	tunUSO6   = 0x40
)

// OpenTAP makes a TAP interface of that name in the calling thread's network
// namespace, or attaches to one that exists there. An empty name, or
// one with %d in it ("sim%d"), lets the kernel choose. The interface goes away
// at Close unless it is persistent. Bringing it up and giving it addresses is
// left to the caller; until then Send fails with unix.EIO.
//
// It needs CAP_NET_ADMIN over the namespace (unix.EPERM) and /dev/net/tun.
func OpenTAP(name string) (*TAP, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf(
			"open /dev/net/tun: %w (module tun, or --device /dev/net/tun in a container)", err)
	}
	if err := attachTAP(fd, name); err != nil {
		return nil, errors.Join(fmt.Errorf("create TAP interface %q: %w", name, err),
			unix.Close(fd))
	}
	return newTAP(fd)
}

func attachTAP(fd int, name string) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	return unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
}

// newTAP takes over fd, attached already.
func newTAP(fd int) (*TAP, error) {
	name, err := tapName(fd)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	offloads := frame.OffloadCsum | frame.OffloadTSO4 | frame.OffloadTSO6
	const base = tunCsum | tunTSO4 | tunTSO6 | tunTSOECN
	if unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, base|tunUSO4|tunUSO6) == nil {
		offloads |= frame.OffloadUSO
	} else if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, base); err != nil {
		return nil, errors.Join(fmt.Errorf("offloads of TAP interface %s: %w", name, err),
			unix.Close(fd))
	}
	t := &TAP{name: name}
	t.fileWire.read = readTAP
	if err := t.fileWire.initFD(fd, "tap "+name, offloads); err != nil {
		return nil, fmt.Errorf("TAP interface %s: %w", name, err)
	}
	return t, nil
}

// tapName asks for the name, and makes sure that the descriptor speaks the format this file reads.
func tapName(fd int) (string, error) {
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return "", err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr); err != nil {
		return "", fmt.Errorf("not an attached TAP descriptor: %w", err)
	}
	const want = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR
	if ifr.Uint16()&want != want {
		return "",
			fmt.Errorf("TAP interface %s has flags %#x: %w (IFF_TAP, IFF_NO_PI and IFF_VNET_HDR "+
				"are needed)",
				ifr.Name(), ifr.Uint16(), unix.EINVAL)
	}
	return ifr.Name(), nil
}

// readTAP reads one frame with its header.
func readTAP(fd int, buf []byte) (frame.Frame, error) {
	n, err := mmio.ReadNow(fd, buf)
	if err != nil {
		return frame.Frame{}, err
	}
	if n < frame.VnetHdrLen+14 {
		return frame.Frame{}, errNotFrame
	}
	f, ok := frame.FromVnet(buf, buf[frame.VnetHdrLen:n], 0)
	if !ok {
		return frame.Frame{}, errNotFrame
	}
	return f, nil
}

// Name returns the name of the interface.
func (t *TAP) Name() string { return t.name }

// SetCarrier tells the interface whether its cable is in. It needs linux 5.0;
// the carrier is up until told otherwise.
func (t *TAP) SetCarrier(up bool) error {
	var v int
	if up {
		v = 1
	}
	var result error
	err := t.raw.Control(func(fd uintptr) {
		result = unix.IoctlSetPointerInt(int(fd),
			unix.TUNSETCARRIER, v)
	})
	if err = errors.Join(err, result); err != nil {
		return fmt.Errorf("carrier of TAP interface %s: %w", t.name, err)
	}
	return nil
}
