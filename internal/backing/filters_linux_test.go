package backing

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	xbpf "golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/internal/bpf"
	"github.com/rdma-netstack/rdma-netstack/privileges"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// refuse gives sockets filters of their own, as where bpf(2) is refused.
func (f *Filters) refuse(t testing.TB) {
	t.Helper()
	must(t, f.unload())
	f.refused = errors.New("for a test")
}

// onBoth runs a test with filters that sockets share, and with their own.
func onBoth(t *testing.T, test func(t *testing.T, w *world)) {
	t.Run("shared", func(t *testing.T) {
		w := newWorld(t)
		must(t, w.filters.Refused())
		test(t, w)
	})
	t.Run("own", func(t *testing.T) {
		w := newWorld(t)
		w.filters.refuse(t)
		test(t, w)
	})
}

// decides runs one of the programs that are shared on a packet that has come by a device
// (BPF_PROG_TEST_RUN), and returns how much of it passes.
func (f *Filters) decides(k kind, packet []byte, ifindex int) (uint32, error) {
	const atResult, contextLen, framesLen = 4, contextIfindex + 4, 14
	frame := append(make([]byte, framesLen), packet...)
	context := make([]byte, contextLen)
	binary.NativeEndian.PutUint32(context[contextIfindex:], uint32(ifindex))
	r := new(bpf.Request).AddFields(uint32(f.programs[k]), 0, uint32(len(frame)), 0).
		AddAddress(frame).AddAddress(nil).AddFields(1, 0, contextLen, 0).AddAddress(context).
		AddAddress(nil).AddFields(0, 0, 0)
	_, err := r.Call(unix.BPF_PROG_TEST_RUN)
	return binary.NativeEndian.Uint32(r.Bytes[atResult:]), err
}

// classicDecides runs the classic program, in x/net's interpreter, which knows no devices: the load
// of the ifindex is replaced.
func classicDecides(program []unix.SockFilter, packet []byte, ifindex int) (uint32, error) {
	var raw []xbpf.RawInstruction
	for _, in := range program {
		at := int32(adIfindex)
		if in.Code == unix.BPF_LD|unix.BPF_W|unix.BPF_ABS && in.K == uint32(at) {
			in.Code, in.K = unix.BPF_LD|unix.BPF_IMM, uint32(ifindex)
		}
		raw = append(raw, xbpf.RawInstruction{Op: in.Code, Jt: in.Jt, Jf: in.Jf, K: in.K})
	}
	decoded, ok := xbpf.Disassemble(raw)
	if !ok {
		return 0, fmt.Errorf("not all of %v is known", raw)
	}
	vm, err := xbpf.NewVM(decoded)
	if err != nil {
		return 0, err
	}
	n, err := vm.Run(packet)
	return uint32(n), err
}

// decideAlike returns what both programs of a kind let pass, or that they differ.
func (f *Filters) decideAlike(k kind, d Device, packet []byte, ifindex int) (uint32, error) {
	got, err := f.decides(k, packet, ifindex)
	want, classicErr := classicDecides(k.classic(d), packet, ifindex)
	if err = errors.Join(err, classicErr); err == nil && got != want {
		err = fmt.Errorf("program %d for %+v by %d: %#x, the classic one %#x: % x", k, d, ifindex,
			got, want, packet)
	}
	return want, err
}

// TestSameDecisions compares the programs that are shared with the classic ones: every device and
// Last about the packet's, every TCP flag, and every length.
func TestSameDecisions(t *testing.T) {
	w := newWorld(t)
	must(t, w.filters.Refused())
	passed, dropped := 0, 0
	check := func(k kind, d Device, packet []byte, ifindex int) error {
		n, err := w.filters.decideAlike(k, d, packet, ifindex)
		if n == 0 {
			dropped++
		} else {
			passed++
		}
		return err
	}
	var packets [][]byte
	for flags := range 256 {
		header := make([]byte, 20)
		header[atFlags] = byte(flags)
		packets = append(packets, header)
	}
	for n := range 20 {
		packets = append(packets, make([]byte, n))
	}
	eth0 := w.device.Index
	must(t, w.host.Do(func() error {
		for k := range kinds {
			for _, index := range []int{1, eth0, eth0 + 1, 0xffff} {
				for _, last := range []int{0, 1, eth0 - 1, eth0, eth0 + 1} {
					d := Device{Index: index, Last: last}
					w.filters.SetDevice(d)
					for _, ifindex := range []int{1, eth0} {
						for _, packet := range packets {
							if err := check(k, d, packet, ifindex); err != nil {
								return err
							}
						}
					}
				}
			}
		}
		return nil
	}))
	if passed < 1000 || dropped < 1000 {
		t.Errorf("%d passed, %d were dropped: that shows nothing", passed, dropped)
	}
}

// FuzzSameDecisions does so with any packet by lo.
func FuzzSameDecisions(f *testing.F) {
	need.Root(f)
	shared := NewFilters(Device{}, clock.Clock{})
	must(f, shared.Refused())
	f.Cleanup(func() { must(f, shared.Close()) })
	f.Add(uint8(passBegun), uint8(2), uint8(0), make([]byte, 20))
	f.Add(uint8(passOthers), uint8(1), uint8(1), []byte("short"))
	f.Fuzz(func(t *testing.T, k, index, last uint8, packet []byte) {
		if len(packet) > 1500 {
			return
		}
		d := Device{Index: int(index), Last: int(last)}
		shared.SetDevice(d)
		_, err := shared.decideAlike(kind(k)%kinds, d, packet, 1)
		must(t, err)
	})
}

// TestPacer: a burst goes without waiting, and what is more waits for its period, and for what was
// given up before it.
func TestPacer(t *testing.T) {
	if pacerBurst > 256 || pacerPeriod < 20*time.Millisecond {
		t.Errorf("%d in %v: Linux is given as many as it can bear", pacerBurst, pacerPeriod)
	}
	virtual := clocktest.New()
	settled := 0
	p := pacer{clock: virtual.Clock(), settle: func() { settled++ }}
	began := virtual.Now()
	for range pacerBurst {
		p.waitForTurn()
	}
	if !virtual.Now().Equal(began) || settled != 0 {
		t.Errorf("a burst took %v", virtual.Now().Sub(began))
	}
	defer virtual.Run()()
	const more = 20
	for range more * pacerBurst {
		p.waitForTurn()
	}
	if took := virtual.Now().Sub(began); took != more*pacerPeriod || settled != more {
		t.Errorf("%d more bursts took %v, and waited %d times; want %v", more, took, settled,
			more*pacerPeriod)
	}
}

// TestFreedInPortions: sockets with filters of their own pace what frees one, whatever does; shared
// filters wait for nothing.
func TestFreedInPortions(t *testing.T) {
	const n = 300
	w := newWorld(t)
	for _, own := range []bool{false, true} {
		virtual := clocktest.New()
		f := NewFilters(w.device, virtual.Clock())
		settled := 0
		f.pacer.settle = func() { settled++ }
		if own {
			f.refuse(t)
		}
		stop := virtual.Run()
		began := virtual.Now()
		must(t, w.host.Do(func() error {
			var all []*Socket
			for i := range n {
				s, err := Open(TCP, netip.AddrPortFrom(w.at, uint16(20000+i)), f)
				if err != nil {
					return err
				}
				all = append(all, s)
			}
			if want := map[bool]int{true: n}[own]; f.Own() != want {
				return fmt.Errorf("%d sockets have filters of their own, want %d", f.Own(), want)
			}
			frees := 0
			for _, change := range []func(s *Socket) error{
				listenOnce, (*Socket).FollowDevice, (*Socket).Refuse, (*Socket).Silence,
				(*Socket).Close,
			} {
				for _, s := range all {
					if err := change(s); err != nil {
						return err
					}
					if frees++; !own {
						frees = 0
					}
					if want := max(0, frees-1) / pacerBurst; settled != want {
						return fmt.Errorf("own: %v; behind %d freed %d waits, want %d", own, frees,
							settled, want)
					}
				}
			}
			return nil
		}))
		stop()
		if f.Own() != 0 {
			t.Errorf("own: %v: %d filters are left", own, f.Own())
		}
		took := virtual.Now().Sub(began)
		if want := time.Duration(settled) * pacerPeriod; took != want {
			t.Errorf("own: %v: %d periods took %v, want %v", own, settled, took, want)
		}
		must(t, f.Close())
	}
}

// TestDropAll: nothing comes to a socket of the caller's, and closing many of those whose filters
// are their own is paced.
func TestDropAll(t *testing.T) {
	const n = pacerBurst + 1
	for _, own := range []bool{false, true} {
		virtual := clocktest.New()
		f := NewFilters(Device{}, virtual.Clock())
		settled := 0
		f.pacer.settle = func() { settled++ }
		if own {
			f.refuse(t)
		} else {
			must(t, f.Refused())
		}
		stop := virtual.Run()
		var ends []func() error
		for range n {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			must(t, err)
			closeSocket, err := f.DropAll(fd)
			must(t, err)
			ends = append(ends, closeSocket)
			must(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
			to, err := unix.Getsockname(fd)
			must(t, err)
			must(t, unix.Sendto(fd, []byte("x"), 0, to)) // lo delivers before it returns
			if _, _, err := unix.Recvfrom(fd, make([]byte, 1), unix.MSG_DONTWAIT); err !=
				unix.EAGAIN {
				t.Fatalf("own: %v; a datagram has come: %v", own, err)
			}
		}
		want, waits := 0, 0
		if own {
			want, waits = n, 1
		}
		if f.Own() != want {
			t.Errorf("own: %v; %d sockets have filters of their own, want %d", own, f.Own(), want)
		}
		for _, end := range ends {
			must(t, end())
		}
		stop()
		if f.Own() != 0 || settled != waits {
			t.Errorf("own: %v; %d filters are left, %d waits; want none, %d", own, f.Own(),
				settled, waits)
		}
		must(t, f.Close())
	}
}

// listenOnce makes the kernel serve at the socket, and stops listening.
func listenOnce(s *Socket) error {
	l, err := s.Listener(8)
	if err != nil {
		return err
	}
	return l.Close()
}

// confinedEnv makes the test program open sockets when it has given up its privileges.
const confinedEnv = "BACKING_TEST_CONFINED"

func TestMain(m *testing.M) {
	if os.Getenv(confinedEnv) != "" {
		if err := openConfined(); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// openConfined does all that a server does at run time which has kept CAP_NET_ADMIN only, without
// the system calls that it needs no longer.
func openConfined() error {
	f := NewFilters(Device{Index: 2}, clock.Clock{})
	if err := f.Refused(); err != nil {
		return err
	}
	if err := errors.Join(privileges.Drop(privileges.NetAdmin), privileges.Filter()); err != nil {
		return err
	}
	if late := NewFilters(Device{Index: 2}, clock.Clock{}); late.Refused() == nil {
		return errors.New("bpf(2) is allowed afterwards")
	}
	for _, p := range []Protocol{TCP, UDP} {
		s, err := Open(p, netip.MustParseAddrPort("127.0.0.1:0"), f)
		if err != nil {
			return err
		}
		if p == TCP {
			if err := listenOnce(s); err != nil {
				return err
			}
		}
		f.SetDevice(Device{Index: 3})
		if err := errors.Join(s.FollowDevice(), s.Refuse(), s.Silence()); err != nil {
			return err
		}
		if s.owned {
			return fmt.Errorf("the socket of %s has a filter of its own", p)
		}
		if err := s.Close(); err != nil {
			return err
		}
	}
	return f.Close()
}

// TestConfined: a server that has given up its privileges opens sockets that share filters.
func TestConfined(t *testing.T) {
	need.Root(t)
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), confinedEnv+"=1")
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "CGO_ENABLED=0") {
		need.That(t, "nocgo", fmt.Errorf("%s", out)) // all threads at once
	}
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
