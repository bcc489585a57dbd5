package hostmode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestBesideKernel has the kernel do all that is its own on the address that a stack serves on,
// while that is busy: its DHCP client renews the address, it answers ARP requests, neighbour
// solicitations and pings, once each, finds its own neighbours, and serves HTTP on another port.
func TestBesideKernel(t *testing.T) { onBoth(t, besideKernel) }

func besideKernel(t *testing.T, w *world) {
	web, err := w.host.Listen("tcp", ":9000")
	must(t, err)
	kernel := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		io.WriteString(rw, "the kernel's "+r.URL.Path)
	})}
	go kernel.Serve(web)
	defer kernel.Close()
	s := w.start(t, "tcp :8080", "udp :5300")
	renew := w.leased(t) // a card carries frames only now
	seen, sent := watch(t, w.outside), watchSent(t, w.host)
	resets := w.kernelCounter(t, "Tcp", "OutRsts")

	stop, busy := make(chan struct{}), make(chan error, 2)
	for _, at := range []string{hostIP + ":8080", "[" + hostIPv6 + "]:8080"} {
		go func() { busy <- keepVisiting(w.outside, at, stop) }()
	}
	for range 3 {
		renew()
	}
	for _, to := range []string{hostIP, hostIPv6} {
		asksOnce(t, w, netip.MustParseAddr(to))
		must(t, ping(t, w.outside, to, w.rings))
	}
	for _, to := range []string{outsideIP, outsideIPv6} {
		w.forgetNeighbours(t)
		must(t, ping(t, w.host, to, w.rings))
	}
	client := http.Client{Transport: &http.Transport{DialContext: w.outside.DialContext,
		DisableKeepAlives: true}, Timeout: time.Minute}
	for _, at := range []string{hostIP, "[" + hostIPv6 + "]"} {
		must(t, each(20, 4, func(i int) error {
			answer, err := client.Get(fmt.Sprintf("http://%s:9000/%d", at, i))
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			got, err := io.ReadAll(answer.Body)
			if want := fmt.Sprintf("the kernel's /%d", i); string(got) != want {
				err = errors.Join(err, fmt.Errorf("%q, want %q", got, want))
			}
			return err
		}))
	}
	must(t, datagrams(w.outside, hostIP, 20, 100))
	close(stop)
	must(t, errors.Join(<-busy, <-busy))
	if w.given {
		givenSilence(t, sent)
		s.stop()
		return
	}
	if got := w.kernelCounter(t, "Tcp", "OutRsts") - resets; got > seen.from(9000) {
		t.Errorf("the kernel has sent %d RSTs, %d of them for its own server", got, seen.from(9000))
	}
	if _, twice := seen.counts(8080); twice != 0 {
		t.Errorf("%d SYNs answered twice", twice)
	}
	s.stop()
}

// leased has the host's address come by DHCP, and returns a function that has it renewed: by a
// unicast of the kernel's address, and its answer.
func (w *world) leased(t *testing.T) (renew func()) {
	t.Helper()
	mac, _ := hardwareAddr(t, w.host)
	server := exec.Command(need.Tool(t, "dnsmasq"), "--no-daemon", "--conf-file=/dev/null",
		"--port=0", "--interface=eth0", "--bind-interfaces", "--user=root", "--group=root",
		"--dhcp-leasefile="+filepath.Join(t.TempDir(), "leases"), "--dhcp-authoritative",
		"--dhcp-range="+hostIP+","+hostIP+",1h", "--dhcp-host="+mac.String()+","+hostIP)
	w.runs(t, w.outside, server)
	said := filepath.Join(t.TempDir(), "said")
	script := filepath.Join(t.TempDir(), "script")
	must(t, os.WriteFile(script, []byte("#!/bin/sh\ncase $1 in bound|renew)\n"+
		"ip address replace $ip/$mask dev $interface valid_lft $lease preferred_lft $lease\n"+
		"echo $1 $ip >> "+said+" ;;\nesac\n"), 0o755))
	client := exec.Command(need.Tool(t, "udhcpc"), "-f", "-i", "eth0", "-s", script, "-t", "20",
		"-T", "1", "-r", hostIP)
	w.runs(t, w.host, client)
	lines := 0
	next := func() (line string) {
		t.Helper()
		var text []byte
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			text, _ = os.ReadFile(said)
			if all := strings.SplitAfter(string(text), "\n"); len(all) > lines+1 {
				lines++
				return all[lines-1]
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("the DHCP client says %q, and nothing more", text)
		return ""
	}
	if got, want := next(), "bound "+hostIP+"\n"; got != want {
		t.Fatalf("the DHCP client says %q, want %q", got, want)
	}
	// A client that has had no answer for some seconds, as the server gets no processor, begins
	// anew: it says "bound". It may then be asked once more.
	return func() {
		t.Helper()
		var got []string
		for range 5 {
			must(t, client.Process.Signal(unix.SIGUSR1))
			if got = append(got, next()); got[len(got)-1] == "renew "+hostIP+"\n" {
				return
			}
		}
		t.Fatalf("the DHCP client says %q, want it to renew %s", got, hostIP)
	}
}

// runs runs a program in a namespace until the test ends.
func (w *world) runs(t *testing.T, n *lab.Net, cmd *exec.Cmd) {
	t.Helper()
	must(t, n.Start(cmd))
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
}

// keepVisiting has a client come again and again.
func keepVisiting(from *lab.Net, at string, stop <-chan struct{}) error {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		c, err := dial(from, at)
		if err == nil {
			err = visit(c, "stack", i, 20000)
		}
		if err != nil {
			return fmt.Errorf("visit %d of %s: %w", i, at, err)
		}
	}
}

// forgetNeighbours has the host's kernel ask for its neighbours on eth0 again.
func (w *world) forgetNeighbours(t *testing.T) {
	t.Helper()
	must(t, w.host.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		all, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
		for _, n := range all {
			if n.State&unix.NUD_PERMANENT == 0 && n.State&unix.NUD_NOARP == 0 {
				err = errors.Join(err, netlink.NeighDel(&n))
			}
		}
		return err
	}))
}

// asksOnce asks for the MAC of the host's address, many times, and requires one answer to each at
// most, and one to some at least: a software card may lose a frame.
func asksOnce(t *testing.T, w *world, to netip.Addr) {
	t.Helper()
	const questions = 20
	mac, _ := hardwareAddr(t, w.host)
	var port *lab.Port
	must(t, w.outside.Do(func() (err error) {
		port, err = lab.OpenPort("eth0")
		return err
	}))
	defer port.Close()
	frame, isAnswer := resolution(port.MAC, to)
	answers, buf := 0, make([]byte, 2048)
	for i := range questions {
		must(t, port.Send(frame))
		for end := time.Now().Add(2 * time.Second); answers <= i; {
			got, err := port.Recv(buf, end)
			if err != nil {
				break // lost; the sum counts
			}
			if isAnswer(got) {
				answers++
				if by := net.HardwareAddr(got[6:12]); by.String() != mac.String() {
					t.Errorf("%v is answered by %v, not by %v", to, by, mac)
				}
			}
		}
	}
	for end := time.Now().Add(200 * time.Millisecond); ; {
		got, err := port.Recv(buf, end)
		if err != nil {
			break
		}
		if isAnswer(got) {
			answers++
		}
	}
	if answers > questions || answers < questions/2 || !w.rings && answers != questions {
		t.Errorf("%d answers to %d questions for %v", answers, questions, to)
	}
}

// resolution is an ARP request or a neighbour solicitation of the outside for an address, and
// isAnswer says what answers it.
func resolution(from net.HardwareAddr, to netip.Addr) (frame []byte, isAnswer func([]byte) bool) {
	if to.Is4() {
		ip := netip.MustParseAddr(outsideIP).As4()
		frame = append([]byte{255, 255, 255, 255, 255, 255}, from...)
		frame = append(frame, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
		frame = append(append(append(frame, from...), ip[:]...), make([]byte, 6)...)
		return append(frame, to.AsSlice()...), func(f []byte) bool {
			return len(f) >= 42 && f[12] == 8 && f[13] == 6 && f[21] == 2 &&
				netip.AddrFrom4([4]byte(f[28:])) == to
		}
	}
	ip, target := netip.MustParseAddr(outsideIPv6).As16(), to.As16()
	group := netip.MustParseAddr("ff02::1:ff00:0").As16()
	copy(group[13:], target[13:])
	message := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target[:]...)
	message = append(append(message, 1, 1), from...)
	binary.BigEndian.PutUint16(message[2:], sum6(ip, group, message))
	frame = append(append([]byte{0x33, 0x33}, group[12:]...), from...)
	frame = append(frame, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(message)), 58, 255)
	frame = append(append(append(frame, ip[:]...), group[:]...), message...)
	return frame, func(f []byte) bool {
		return len(f) >= 78 && f[12] == 0x86 && f[13] == 0xdd && f[20] == 58 &&
			f[54] == 136 && [16]byte(f[62:]) == target
	}
}

// sum6 is the checksum of an ICMPv6 message (RFC 8200 section 8.1).
func sum6(from, to [16]byte, message []byte) uint16 {
	pseudo := append(append(from[:], to[:]...), 0, 0, 0, byte(len(message)), 0, 0, 0, 58)
	sum := uint32(0)
	for _, b := range [][]byte{pseudo, message} {
		for i := 0; i+1 < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
