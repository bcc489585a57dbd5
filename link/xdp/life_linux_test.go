package xdp

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/bpf"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/privileges"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/eth"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// childEnv makes the test program a server of frames, see serveFrames. Its value is "await" for one
// that succeeds another, and "program" for one that is no server, see holdProgram.
const childEnv, deviceEnv = "XDP_TEST_CHILD", "XDP_TEST_DEVICE"

func TestMain(m *testing.M) {
	if mode := os.Getenv(childEnv); mode != "" {
		run := serveFrames
		if mode == "program" {
			run = holdProgram
		}
		if err := run(mode); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serveFrames opens a port, gives up all privileges, and prints the last byte of each frame, and
// what it came by.
func serveFrames(mode string) error {
	p, err := Open(Config{Config: packet.Config{Device: ifname, MAC: ourMAC},
		Await: mode == "await"})
	if err != nil {
		return err
	}
	if err := privileges.Drop(); err != nil {
		return err
	}
	if err := privileges.Filter(); err != nil {
		return err
	}
	if err := denyWithoutPrivileges(p); err != nil {
		return err
	}
	fmt.Println("open", p.Describe())
	for _, q := range queues(p) {
		go func() {
			var batch [8]packet.Frame
			for q.Wait() == nil {
				for _, f := range batch[:q.Receive(batch[:])] {
					if !isChatter(f.Data) {
						_, ring := q.(*RxQueue)
						fmt.Println("frame", f.Data[len(f.Data)-1], ring)
					}
				}
			}
		}()
	}
	<-p.Done()
	return p.Err()
}

// denyWithoutPrivileges drops a source, reads how many frames of it were dropped, and ends that.
func denyWithoutPrivileges(p *Port) error {
	source := packet.SourceDrop{From: netip.MustParsePrefix("203.0.113.0/24"), Proto: protoUDP}
	if n, err := p.DropSources([]packet.SourceDrop{source}); n != 1 || err != nil {
		return fmt.Errorf("drop a source: %d, %w", n, err)
	}
	k, v := keyOfSource(source), sourceValue{}
	if err := bpf.GetElement(p.sources.trie, k[:], v[:]); err != nil {
		return fmt.Errorf("read what was dropped: %w", err)
	}
	_, err := p.DropSources(nil)
	return err
}

// holdProgram attaches a program of somebody else's to the interface that deviceEnv names, and
// holds it until the process is killed.
func holdProgram(string) error {
	program, err := loadPass(othersProgram)
	if err != nil {
		return err
	}
	ifc, err := net.InterfaceByName(os.Getenv(deviceEnv))
	if err != nil {
		return err
	}
	if _, err = attachProgram(program, ifc.Index, unix.XDP_FLAGS_DRV_MODE); err != nil {
		return err
	}
	fmt.Println("attached")
	return unix.Pause()
}

// child represents such a process.
type child struct {
	cmd   *exec.Cmd
	lines chan string
}

func (w *world) start(t testing.TB, mode string) *child {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	c := &child{cmd: exec.Command(exe), lines: make(chan string, 1000)}
	c.cmd.Env = append(os.Environ(), childEnv+"="+mode)
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	must(t, err)
	must(t, w.ours.Start(c.cmd))
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
		close(c.lines)
	}()
	t.Cleanup(c.kill)
	return c
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// expect waits for a line that begins so.
func (c *child) expect(t testing.TB, want string) string {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				t.Fatalf("it ended before it said %q", want)
			}
			if strings.Contains(line, "not supported") {
				need.That(t, "nocgo", fmt.Errorf("%s", line)) // all threads at once
			}
			if strings.HasPrefix(line, "error") {
				t.Fatal(line)
			}
			if strings.HasPrefix(line, want) {
				return line
			}
		case <-deadline:
			t.Fatalf("it never said %q", want)
		}
	}
}

// sendByte sends us a frame that ends in a byte.
func sendByte(t testing.TB, raw int, last byte) {
	t.Helper()
	must(t, unix.Send(raw, append(eth.Ethernet(ourMAC, peerMAC, experimental, eth.Payload(50)),
		last), 0))
}

// TestKilled: the interface of a process that was killed can be had at once, and has been Linux's.
func TestKilled(t *testing.T) {
	w := newWorld(t)
	raw := w.rawSocket(t)
	for range 5 {
		c := w.start(t, "first")
		c.expect(t, "open in copies")
		sendByte(t, raw, 1)
		c.expect(t, "frame 1 true")
		c.kill()
		p := w.open(t, Config{})
		sendByte(t, raw, 2)
		receiveAll(p).next(t)
		if s := p.Stats(); s.Rx[0].Frames != 1 {
			t.Errorf("%+v", s)
		}
		must(t, p.Close())
	}
}

// TestSuccessor: a process that has no capability any more, and few system calls, takes the
// interface when its predecessor ends. Every frame of the change arrives at one of them by some
// way.
func TestSuccessor(t *testing.T) {
	w := newWorld(t)
	raw := w.rawSocket(t)
	before := w.start(t, "first")
	before.expect(t, "open in copies")
	after := w.start(t, "await")
	after.expect(t, "open once another process has let go of it")
	sendByte(t, raw, 1)
	before.expect(t, "frame 1 true")
	before.kill()
	for last := byte(2); ; last++ {
		sendByte(t, raw, last)
		line := after.expect(t, fmt.Sprintf("frame %d ", last))
		if strings.HasSuffix(line, "true") {
			break
		}
		if last == 250 {
			t.Fatal("they all came by packet sockets")
		}
		time.Sleep(10 * time.Millisecond) // of the 250 for which the successor may take
	}
}

// TestSecond: another process cannot have the interface, and is told who has it.
func TestSecond(t *testing.T) {
	w := newWorld(t)
	w.open(t, Config{})
	_, err := w.try(Config{Config: packet.Config{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 0x33}}})
	if err == nil || !strings.Contains(err.Error(), "served through AF_XDP by another process") {
		t.Error(err)
	}
}

// TestOtherProgram: an interface with a program of somebody else's is refused by its name, and left
// as it was.
func TestOtherProgram(t *testing.T) {
	w := newWorld(t)
	program, err := loadPass(othersProgram)
	must(t, err)
	defer unix.Close(program)
	var link int
	must(t, w.ours.Do(func() error {
		ifc, err := net.InterfaceByName(ifname)
		if err == nil {
			link, err = attachProgram(program, ifc.Index, unix.XDP_FLAGS_DRV_MODE)
		}
		return err
	}))
	_, err = w.try(Config{})
	if err == nil || !strings.Contains(err.Error(), `"somebody_elses", and can have one`) {
		t.Error(err)
	}
	must(t, unix.Close(link))
	w.open(t, Config{}) // within a second, in which the kernel takes it away
}

// othersProgram names a program that is not ours.
const othersProgram = "somebody_elses"

// loadPass loads a program that passes all.
func loadPass(name string) (fd int, err error) {
	a := bpf.NewAssembler()
	a.SetValue(bpf.R0, xdpPass)
	a.EndProgram()
	program := a.ToBytes()
	return new(bpf.Request).AddFields(unix.BPF_PROG_TYPE_XDP, uint32(len(program)/8)).
		AddAddress(program).AddAddress([]byte("GPL\x00")).AddFields(0, 0).AddAddress(nil).
		AddFields(0, 0).AddName(name).
		AddFields(0, unix.BPF_XDP).Call(unix.BPF_PROG_LOAD)
}

// TestTakenQueue: a queue that another process has a socket on is named.
func TestTakenQueue(t *testing.T) {
	w := newWorld(t)
	s, err := newSocket(SendSockets)
	must(t, err)
	defer s.closeSocket()
	must(t, w.ours.Do(func() error {
		ifc, err := net.InterfaceByName(ifname)
		if err != nil {
			return err
		}
		other, err := newSocket(SendSockets)
		if err != nil {
			return err
		}
		t.Cleanup(func() { must(t, other.closeSocket()) })
		return other.bindTo(ifc.Index, 0, Options{Copy: true})
	}))
	_, err = w.try(Config{})
	want := "another process has an AF_XDP socket on queue 0 of eth0"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}

// TestAwait: with Await a port serves by packet sockets until it gets the program and the queues.
func TestAwait(t *testing.T) {
	w := newWorld(t)
	raw := w.rawSocket(t)
	first := w.open(t, Config{})
	reports := make(chan error, 10)
	var second *Port
	opened := make(chan struct{})
	second = w.open(t, Config{Await: true, Report: func(err error) {
		<-opened
		second.Stats() // as whoever is told may ask
		reports <- err
	}})
	close(opened)
	if err := <-reports; err == nil || second.Stats().XDP.Lacking == "" {
		t.Errorf("reported %v, %+v", err, second.Stats().XDP)
	}
	r := receiveAll(second)
	// The first has it: nothing reaches the packet sockets of the second.
	sendByte(t, raw, 1)
	receiveAll(first).next(t)
	must(t, first.Close())
	sendByte(t, raw, 2)
	if f := r.next(t); f.Data[len(f.Data)-1] != 2 {
		t.Errorf("% x", f.Data)
	}
	select {
	case err := <-reports:
		must(t, err)
	case <-time.After(20 * time.Second):
		t.Fatalf("%+v", second.Stats().XDP)
	}
	before := second.Stats().Rx[0].Frames
	sendByte(t, raw, 3)
	r.next(t)
	if s := second.Stats(); s.XDP.Bound != len(second.rx) || s.Rx[0].Frames != before+1 ||
		s.XDP.Lacking != "" {
		t.Errorf("%+v", s)
	}
}

// TestMoreQueues: queues that the interface gets later are reported, and their frames arrive.
func TestMoreQueues(t *testing.T) {
	w := newWorld(t)
	ethtool := need.Tool(t, "ethtool")
	set := func(n string) error {
		return w.ours.Do(func() error {
			out, err := exec.Command(ethtool, "-L", ifname, "rx", n).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s: %w", strings.TrimSpace(string(out)), err)
			}
			return nil
		})
	}
	need.That(t, "veth-queues", set("2"))
	reports := make(chan error, 10)
	p := w.open(t, Config{Report: func(err error) { reports <- err }})
	if n := p.NumQueues(); n != 2 {
		t.Fatalf("%d queues", n)
	}
	if err := set("1"); err == nil {
		t.Error("the kernel let queues with sockets go")
	}
	must(t, p.Close())
	// The kernel lets go of a closed socket's queue in a work item (xsk_buff_pool.c, xp_put_pool).
	released := set("1")
	for deadline := time.Now().Add(20 * time.Second); released != nil; released = set("1") {
		if time.Now().After(deadline) {
			t.Fatal(released)
		}
	}
	p = w.open(t, Config{Report: func(err error) { reports <- err }})
	must(t, set("2"))
	p.lookAtQueues()
	if err := <-reports; err == nil || !strings.Contains(err.Error(), "receives by 2 queues") {
		t.Error(err)
	}
	if s := p.Stats().XDP; s.Bound != 1 || s.NetdevQueues != 2 || s.QueueChanges != 1 {
		t.Errorf("%+v", s)
	}
	if r := p.Rules(); len(r) != 1 || r[0].To != "1 AF_XDP queues of 2" {
		t.Errorf("%+v", r)
	}
	must(t, set("1")) // of which the first has a socket
	p.lookAtQueues()
	must(t, <-reports)
	if s := p.Stats().XDP; s.NetdevQueues != 1 || s.QueueChanges != 2 {
		t.Errorf("%+v", s)
	}
}

// TestRules: the rules of a program are told by its number, and why they are not in effect.
func TestRules(t *testing.T) {
	w := newWorld(t)
	own := w.open(t, Config{})
	again := w.open(t, Config{Await: true})
	r, waiting := own.Rules(), again.Rules()
	if len(r) != 1 || r[0].Match != "unicast, MAC 02:00:00:00:00:0a" ||
		r[0].To != "AF_XDP queues" || r[0].Waiting != "" || r[0].Program == 0 {
		t.Errorf("%+v", r)
	}
	if f, _, err := own.asker.factsOf(ifname); err != nil || f.program != r[0].Program {
		t.Errorf("the interface has program %d, %v; the rule %d", f.program, err, r[0].Program)
	}
	if len(waiting) != 1 || waiting[0].Waiting == "" {
		t.Errorf("the second: %+v", waiting)
	}
	must(t, own.Close())
	if r := own.Rules(); len(r) != 0 {
		t.Errorf("closed: %+v", r)
	}
	must(t, again.Close())
	host := w.open(t, Config{Config: packet.Config{Host: true}})
	must(t, host.SetPorts([]packet.Ports{{Addr: ourIPv6.Addr(), First: 443, Last: 443},
		{UDP: true, Addr: ourIP.Addr(), First: 53, Last: 53},
		{Addr: ourIP.Addr(), First: 61440, Last: 61695},
		{Addr: ourIP.Addr(), First: 80, Last: 80}}))
	var got []string
	for _, r := range host.Rules() {
		got = append(got, r.Match)
	}
	want := []string{"TCP port 80 of 192.0.2.10", "TCP port 443 of 2001:db8::10",
		"TCP ports 61440 to 61695 of 192.0.2.10", "UDP port 53 of 192.0.2.10"}
	for i := range want {
		want[i] += ", MAC 02:00:00:00:00:01"
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestMemoryLimit: the limit of locked memory is named with what is needed.
func TestMemoryLimit(t *testing.T) {
	need.Root(t)
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread has lost a capability
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var sets [2]unix.CapUserData
		if err := unix.Capget(&header, &sets[0]); err != nil {
			result <- err
			return
		}
		sets[0].Effective &^= 1 << unix.CAP_IPC_LOCK
		if err := unix.Capset(&header, &sets[0]); err != nil {
			result <- err
			return
		}
		var before unix.Rlimit
		_ = unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before)
		_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 1 << 20, Max: before.Max})
		s, err := newSocket(SendSockets)
		_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &before)
		if err == nil {
			err = s.closeSocket()
		}
		result <- err
	}()
	err := <-result
	want := "AF_XDP needs 8192 KiB of locked memory per queue, and the process may have 1024 KiB"
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Error(err)
	}
}

// TestMTU: an MTU whose frames do not fit is refused before anything is attached, and so is one of
// the other end's by the kernel.
func TestMTU(t *testing.T) {
	w := newWorld(t)
	for _, n := range []struct {
		do   func(func() error) error
		want string
	}{{w.peer.Do, "an MTU is too large for it"}, {w.ours.Do, "its MTU is 9000"}} {
		must(t, n.do(func() error {
			return exec.Command("ip", "link", "set", ifname, "mtu", "9000").Run()
		}))
		if _, err := w.try(Config{}); err == nil || !strings.Contains(err.Error(), n.want) {
			t.Errorf("%v, want %q", err, n.want)
		}
	}
}

// TestOffloads: a veth that leaves checksums out, and an interface that strips tags, are refused.
func TestOffloads(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct{ feature, want string }{
		{"rxvlan", "takes VLAN tags out"}, {"tx", "leave checksums out"},
	} {
		must(t, w.ours.Do(func() error {
			return exec.Command("ethtool", "-K", ifname, tt.feature, "on").Run()
		}))
		if _, err := w.try(Config{}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
	if _, err := w.try(Config{Options: Options{Send: 7}}); err == nil {
		t.Error("a way to send that there is not")
	}
}

// TestNoInterface: the error is that of packet sockets.
func TestNoInterface(t *testing.T) {
	w := newWorld(t)
	must(t, w.ours.Do(func() error {
		_, err := Open(Config{Config: packet.Config{Device: "eth7"}})
		_, want := packet.Open(packet.Config{Device: "eth7"})
		if err == nil || err.Error() != want.Error() {
			return fmt.Errorf("%v, want %v", err, want)
		}
		return nil
	}))
}
