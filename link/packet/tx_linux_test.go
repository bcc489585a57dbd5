package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/eth"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// send posts frames and flushes them.
func send(t testing.TB, q Sender, frames ...TxFrame) {
	t.Helper()
	q.Lock()
	defer q.Unlock()
	for i := range frames {
		must(t, q.Post(&frames[i]))
	}
	q.Flush()
}

// pieces cuts b at places, so that headers and payload cross buffers.
func pieces(b []byte, at ...int) (bufs [][]byte) {
	last := 0
	for _, i := range at {
		bufs = append(bufs, b[last:i])
		last = i
	}
	return append(bufs, b[last:])
}

// next reads the next frame of ours on a socket of the peer's.
func next(t testing.TB, raw int) []byte {
	t.Helper()
	buf := make([]byte, 70000)
	for {
		n, err := unix.Read(raw, buf)
		must(t, err)
		for _, at := range []int{0, vnetLen} {
			if n > at+ethLen && bytes.Equal(buf[at+6:at+12], ourMAC) {
				return buf[:n]
			}
		}
	}
}

// TestSegmentsLeaveWhole sends 20 KB of TCP in one frame, cut into buffers in odd places, and
// requires the peer to see the same frame with the offload metadata of a kernel.
func TestSegmentsLeaveWhole(t *testing.T) {
	for _, to := range []netip.Addr{peerIP.Addr(), peerIPv6.Addr()} {
		from, headers := ourIP.Addr(), ethLen+ipv4Len+tcpLen
		if to.Is6() {
			from, headers = ourIPv6.Addr(), ethLen+ipv6Len+tcpLen
		}
		frame := eth.Ethernet(peerMAC, ourMAC, etherType(to),
			eth.IP(from, to, protoTCP, eth.TCP(1, 2, 0x18, eth.Payload(20000))))
		for _, cuts := range [][]int{nil, {headers}, {ethLen, 20, 20, headers, 127, 5000},
			{headers, 128}, {1000, 1001, 20000}} {
			t.Run(fmt.Sprint(to, cuts), func(t *testing.T) {
				w := newWorld(t)
				raw := w.rawSocket(t, 1)
				p := w.open(t, Config{})
				send(t, p.Tx(0), TxFrame{Bufs: pieces(frame, cuts...), GSOSize: 1400})
				got := next(t, raw)
				v, f := got[:vnetLen], got[vnetLen:]
				kind := byte(1)
				if to.Is6() {
					kind = 4
				}
				if v[0] != 1 || v[1] != kind || binary.NativeEndian.Uint16(v[4:]) != 1400 {
					t.Errorf("virtio_net_hdr % x", v)
				}
				finish(f) // the sum that the header says is to be computed
				if !eth.SumOK(f) {
					t.Error("the pseudo-header's sum is wrong")
				}
				at := headers - 4 // of the checksum
				if !bytes.Equal(f[:at], frame[:at]) || !bytes.Equal(f[at+2:], frame[at+2:]) {
					t.Error("the frame was changed")
				}
			})
		}
	}
}

// TestDatagramsLeaveWhole sends 20 KB of datagrams in one frame: the peer sees the same frame with
// the offload metadata of a kernel, and, where our end has no offloads, the datagrams, tagged or
// not.
func TestDatagramsLeaveWhole(t *testing.T) {
	if !kernelCutsUDP() {
		t.Log("this kernel does not cut up UDP: nothing but that is asserted")
		if n := (&TxQueue{port: new(Port)}).MaxDatagrams(); n != 0 {
			t.Errorf("%d bytes are taken", n)
		}
		return
	}
	tool := need.Tool(t, "ethtool")
	for _, to := range []netip.Addr{peerIP.Addr(), peerIPv6.Addr()} {
		from, headers := ourIP.Addr(), ethLen+ipv4Len+udpLen
		if to.Is6() {
			from, headers = ourIPv6.Addr(), ethLen+ipv6Len+udpLen
		}
		data := eth.Payload(20001)
		frame := eth.Ethernet(peerMAC, ourMAC, etherType(to), eth.IP(from, to, protoUDP, eth.UDP(3,
			53, data)))
		for _, tagged := range []bool{false, true} {
			for _, offloads := range []bool{true, false} {
				t.Run(fmt.Sprintf("%v tagged %v offloads %v", to, tagged, offloads),
					func(t *testing.T) {
						w := newWorld(t)
						if !offloads {
							must(t, w.ours.Do(func() error {
								return runTool(tool, "-K", ifname, "tx", "off")
							}))
						}
						raw := w.rawSocket(t, 1)
						p := w.open(t, Config{})
						f := TxFrame{Bufs: pieces(bytes.Clone(frame), 20, headers, 5000),
							GSOSize: 1400}
						if tagged {
							f.Flags, f.VLAN = TxTag, 3<<13|5
						}
						send(t, p.Tx(0), f)
						if !offloads {
							wantDatagrams(t, raw, headers, data)
							return
						}
						got := next(t, raw)
						v, g := got[:vnetLen], got[vnetLen:]
						if v[0] != 1 || v[1] != 5 || binary.NativeEndian.Uint16(v[4:]) != 1400 {
							t.Errorf("virtio_net_hdr % x", v)
						}
						if n := binary.BigEndian.Uint16(g[headers-4:]); n != udpLen+20001 {
							t.Errorf("UDP length %d", n)
						}
						if !bytes.Equal(g[headers:], data) {
							t.Error("the payload was changed")
						}
					})
			}
		}
	}
}

// wantDatagrams reads the datagrams of 1400 bytes that data was cut into.
func wantDatagrams(t *testing.T, raw, headers int, data []byte) {
	t.Helper()
	var got []byte
	for len(got) < len(data) {
		f := next(t, raw)[vnetLen:]
		wantFinished(t, f)
		size := min(1400, len(data)-len(got))
		if n := binary.BigEndian.Uint16(f[headers-4:]); int(n) != udpLen+size {
			t.Fatalf("UDP length %d behind %d bytes", n, len(got))
		}
		got = append(got, f[headers:]...)
	}
	if !bytes.Equal(got, data) {
		t.Error("not what was sent")
	}
}

// TestKernelRelease reads releases as kernels of distributions name them.
func TestKernelRelease(t *testing.T) {
	for release, want := range map[string]bool{"6.2.0": true, "6.12.48-cloud-amd64": true,
		"7.0-rc3": true, "6.1.0-40-amd64": false, "5.15.0": false, "4.4.0": false, "": false,
		"six": false, "10.0": true} {
		if got := atLeast(release, 6, 2); got != want {
			t.Errorf("%q: %v", release, got)
		}
	}
}

// finish adds the segment's sum to the pseudo-header's.
func finish(f []byte) {
	at := ethLen + ipv4Len
	if f[ethLen]>>4 == 6 {
		at = ethLen + ipv6Len
	}
	binary.BigEndian.PutUint16(f[at+16:], ^eth.Sum(f[at:]))
}

// TestKernelFinishes turns the offloads of our end off, as on a NIC without any: the kernel
// segments and completes what we send, and the peer sees correct checksums on correct segments,
// tagged or not.
func TestKernelFinishes(t *testing.T) {
	tool := need.Tool(t, "ethtool")
	for _, tagged := range []bool{false, true} {
		for _, to := range []netip.Addr{peerIP.Addr(), peerIPv6.Addr()} {
			t.Run(fmt.Sprintf("%v tagged %v", to, tagged), func(t *testing.T) {
				w := newWorld(t)
				must(t, w.ours.Do(func() error { return runTool(tool, "-K", ifname, "tx", "off") }))
				raw := w.rawSocket(t, 1)
				p := w.open(t, Config{})
				from := ourIP.Addr()
				if to.Is6() {
					from = ourIPv6.Addr()
				}
				data := eth.Payload(5000)
				segment := eth.IP(from, to, protoTCP, eth.TCP(1, 2, 0x18, data))
				datagram := eth.IP(from, to, protoUDP, eth.UDP(3, 53, eth.Payload(301)))
				if !to.Is6() {
					segment[10], datagram[10] = 0xba, 0xba // to be computed as well
				}
				frames := []TxFrame{
					{Bufs: pieces(eth.Ethernet(peerMAC, ourMAC, etherType(to), segment), 60),
						GSOSize: 1400},
					{Bufs: pieces(eth.Ethernet(peerMAC, ourMAC, etherType(to), datagram), 42),
						Flags: TxChecksum},
				}
				if tagged {
					for i := range frames {
						frames[i].Flags, frames[i].VLAN = frames[i].Flags|TxTag, 3<<13|5
					}
				}
				send(t, p.Tx(0), frames...)
				var got []byte
				for range 4 {
					f := next(t, raw)[vnetLen:]
					wantFinished(t, f)
					at := ethLen + ipv4Len + tcpLen
					if to.Is6() {
						at = ethLen + ipv6Len + tcpLen
					}
					got = append(got, f[at:]...)
				}
				if !bytes.Equal(got, data) {
					t.Errorf("%d bytes came, %d were sent, or they differ", len(got), len(data))
				}
				wantFinished(t, next(t, raw)[vnetLen:])
			})
		}
	}
}

func wantFinished(t *testing.T, f []byte) {
	t.Helper()
	if !eth.SumOK(f) || f[ethLen]>>4 == 4 && eth.Sum(f[ethLen:ethLen+ipv4Len]) != 0xffff {
		t.Errorf("a checksum is wrong in % x", f[:60])
	}
}

// TestKernelAccepts sends a datagram without its checksum to the peer's kernel, which accepts it.
func TestKernelAccepts(t *testing.T) {
	w := newWorld(t)
	conn, err := w.peer.ListenPacket("udp", peerIP.Addr().String()+":53")
	must(t, err)
	defer conn.Close()
	p := w.open(t, Config{})
	must(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	send(t, p.Tx(0), TxFrame{Flags: TxChecksum, Bufs: [][]byte{eth.Ethernet(peerMAC, ourMAC,
		typeIPv4,
		eth.IP(ourIP.Addr(), peerIP.Addr(), protoUDP, eth.UDP(1024, 53, []byte("question"))))}})
	buf := make([]byte, 100)
	n, from, err := conn.ReadFrom(buf)
	must(t, err)
	if string(buf[:n]) != "question" || from.String() != "192.0.2.10:1024" {
		t.Errorf("%q from %v", buf[:n], from)
	}
}

// kernelStandIn replaces the packet socket by a socket pair: it is full until it is read from.
func kernelStandIn(t *testing.T) (q *TxQueue, peer int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fds[0]); unix.Close(fds[1]) })
	must(t, unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 16<<10))
	port := new(Port)
	port.mtu.Store(1500)
	return &TxQueue{port: port, fd: fds[0]}, fds[1]
}

// TestFullBuffer posts more than there is room for: the rest waits, in order, in memory of its own;
// above some number frames are refused; and all frames that were accepted arrive.
func TestFullBuffer(t *testing.T) {
	q, peer := kernelStandIn(t)
	frame := make([]byte, 1000)
	posted := 0
	for {
		frame[0], frame[1] = byte(posted), byte(posted>>8)
		if err := q.Post(&TxFrame{Bufs: pieces(frame, 500)}); err != nil {
			if err != ErrFull {
				t.Fatal(err)
			}
			break
		}
		posted++
		q.Flush()
		clear(frame) // it is the caller's again
		if posted > 1000 {
			t.Fatal("the socket has room without end")
		}
	}
	if q.Waiting() != maxWaiting || q.count.full.Load() == 0 {
		t.Errorf("%d wait, %+v", q.Waiting(), q.countersNow())
	}
	buf := make([]byte, 2000)
	for i := range posted {
		n, err := unix.Read(peer, buf)
		must(t, err)
		if n != vnetLen+1000 || buf[vnetLen] != byte(i) || buf[vnetLen+1] != byte(i>>8) {
			t.Fatalf("frame %d: %d bytes, % x", i, n, buf[:vnetLen+2])
		}
		q.Retry()
	}
	if s := q.countersNow(); q.Waiting() != 0 || s.Frames != uint64(posted) || s.Dropped != 0 ||
		s.Waited != maxWaiting {
		t.Errorf("%d wait, %+v", q.Waiting(), s)
	}
}

// TestFrameSizes requires that frames which the interface would not send are refused, and those at
// the limits sent.
func TestFrameSizes(t *testing.T) {
	q, _ := kernelStandIn(t)
	for _, tt := range []struct {
		size, gso int
		want      error
	}{
		{13, 0, ErrFrameSize}, {14, 0, nil}, {1514, 0, nil}, {1515, 0, ErrFrameSize},
		{1515, 1400, nil}, {65549, 1400, nil}, {65550, 1400, ErrFrameSize},
	} {
		err := q.Post(&TxFrame{Bufs: [][]byte{make([]byte, tt.size)}, GSOSize: tt.gso})
		if !errors.Is(err, tt.want) {
			t.Errorf("%d bytes, GSO size %d: %v, want %v", tt.size, tt.gso, err, tt.want)
		}
	}
	q.closeSocket()
	if err := q.Post(&TxFrame{Bufs: [][]byte{make([]byte, 60)}}); !errors.Is(err, ErrClosed) {
		t.Errorf("on a closed queue: %v", err)
	}
}

// TestNoAllocations sends and receives batches between two ports.
func TestNoAllocations(t *testing.T) {
	w := newWorld(t)
	a := w.open(t, Config{})
	b := openIn(t, w.peer, Config{Device: ifname, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 0x0c}})
	frame := TxFrame{GSOSize: 1400, Bufs: pieces(eth.Ethernet(b.MAC(), ourMAC, typeIPv4,
		eth.IP(ourIP.Addr(), peerIP.Addr(), protoTCP, eth.TCP(1, 2, 0x18, eth.Payload(3000)))), 54,
		1000)}
	var batch [16]Frame
	round := func() {
		tx, rx := a.Tx(0), b.Rx(0)
		tx.Lock()
		for range 8 {
			if err := tx.Post(&frame); err != nil {
				t.Error(err)
			}
		}
		tx.Flush()
		tx.Unlock()
		for got := 0; got < 8; {
			n := rx.Receive(batch[:])
			if got += n; n == 0 && rx.Wait() != nil {
				return
			}
		}
	}
	round()
	if n := testing.AllocsPerRun(50, round); n != 0 {
		t.Errorf("%v allocations for 8 frames", n)
	}
}
