package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// Packet carries frames of an existing interface, opened promiscuously with a packet socket,
// as a wire: what the interface receives reaches the port, what the port sends
// leaves through the interface. Frames that the host itself sends through the
// interface are not seen, as they would not be on a cable.
type Packet struct {
	fileWire
	name string
	oob  [64]byte // the receiver's
}

var _ Wire = (*Packet)(nil)

// packetBuffer says what is asked for as socket buffer, in bytes each way.
const packetBuffer = 8 << 20

// OpenPacket opens the interface of that name in the calling thread's network namespace. It needs
// CAP_NET_RAW over the namespace (unix.EPERM). A closed Packet leaves the interface as it found it.
func OpenPacket(name string) (*Packet, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket for %s: %w (CAP_NET_RAW)", name, err)
	}
	if err := setupPacket(fd, name); err != nil {
		return nil, errors.Join(fmt.Errorf("packet socket for %s: %w", name, err), unix.Close(fd))
	}
	p := &Packet{name: name}
	p.fileWire.read = p.readFrame
	if err := p.fileWire.initFD(fd, "packet "+name,
		frame.OffloadCsum|frame.OffloadTSO4|frame.OffloadTSO6); err != nil {
		return nil, fmt.Errorf("packet socket for %s: %w", name, err)
	}
	return p, nil
}

// setupPacket sets all that must be in place before the first frame, and binds
// last: the socket was made for no protocol and receives nothing until then.
func setupPacket(fd int, name string) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr); err != nil {
		return err
	}
	index := int(ifr.Uint32())
	for _, opt := range []int{unix.PACKET_VNET_HDR, unix.PACKET_AUXDATA,
		unix.PACKET_IGNORE_OUTGOING} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, opt, 1); err != nil {
			return fmt.Errorf("option %d: %w", opt, err)
		}
	}
	growBuffers(fd)
	mreq := unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET,
		unix.PACKET_ADD_MEMBERSHIP, &mreq); err != nil {
		return fmt.Errorf("promiscuous mode: %w", err)
	}
	var all [2]byte
	binary.BigEndian.PutUint16(all[:], unix.ETH_P_ALL)
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(all[:]),
		Ifindex: index})
}

// growBuffers asks for more than the system's limit first, which needs
// CAP_NET_ADMIN. Smaller ones only lose frames sooner.
func growBuffers(fd int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, packetBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, packetBuffer)
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, packetBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, packetBuffer)
	}
}

const vlanTagLen = 4

// readFrame reads one frame with its header. A VLAN tag that the kernel keeps
// beside the frame is put back where it was on the cable; buf leaves room for it.
func (p *Packet) readFrame(fd int, buf []byte) (frame.Frame, error) {
	n, oobn, flags, err := mmio.ReceiveNow(fd, buf[vlanTagLen:], p.oob[:])
	if errors.Is(err, unix.EINVAL) {
		return frame.Frame{}, errNotFrame // a kind of segmentation the header cannot express
	}
	if err != nil {
		return frame.Frame{}, err
	}
	if flags&unix.MSG_TRUNC != 0 || n < frame.VnetHdrLen+14 {
		return frame.Frame{}, errNotFrame
	}
	var hdr [frame.VnetHdrLen]byte
	copy(hdr[:], buf[vlanTagLen:])
	data, shift := buf[vlanTagLen+frame.VnetHdrLen:vlanTagLen+n], 0
	if tci, tpid, tagged := vlanOf(p.oob[:oobn]); tagged {
		data, shift = buf[frame.VnetHdrLen:vlanTagLen+n], vlanTagLen
		copy(data, data[vlanTagLen:vlanTagLen+12])
		binary.BigEndian.PutUint16(data[12:], tpid)
		binary.BigEndian.PutUint16(data[14:], tci)
	}
	f, ok := frame.FromVnet(hdr[:], data, shift)
	if !ok {
		return frame.Frame{}, errNotFrame
	}
	return f, nil
}

// Bits of tpacket_auxdata.tp_status (include/uapi/linux/if_packet.h).
const (
	statusVLANValid = 1 << 4
	statusTPIDValid = 1 << 6
	auxdataLen      = 20
)

// vlanOf finds the tag in the control messages of a frame (struct tpacket_auxdata).
func vlanOf(oob []byte) (tci, tpid uint16, ok bool) {
	for len(oob) > 0 {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return 0, 0, false
		}
		oob = rest
		if h.Level != unix.SOL_PACKET || h.Type != unix.PACKET_AUXDATA || len(data) < auxdataLen {
			continue
		}
		ne := binary.NativeEndian
		status := ne.Uint32(data)
		if status&statusVLANValid == 0 {
			return 0, 0, false
		}
		tpid = unix.ETH_P_8021Q
		if status&statusTPIDValid != 0 {
			tpid = ne.Uint16(data[18:])
		}
		return ne.Uint16(data[16:]), tpid, true
	}
	return 0, 0, false
}

// Name returns the name of the interface.
func (p *Packet) Name() string { return p.name }
