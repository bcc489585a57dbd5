//go:build linux

package vm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// testpmd with its queues and rules by DEVX: what the driver uses when the device has user contexts
// (UCTX) and memory of programs (UMEM).

// prompt is testpmd's, run by commands.
type prompt struct {
	*testing.T
	w    *world
	job  int
	mac  net.HardwareAddr // of the port
	seen int              // bytes of the output that earlier commands printed
}

// testpmd starts testpmd with a prompt.
func (w *world) testpmd(t *testing.T, devargs string, args ...string) *prompt {
	t.Helper()
	argv := append(w.testpmdArgv(devargs), "-i", "--total-num-mbufs=32768")
	p := &prompt{T: t, w: w, mac: w.netdevMAC(t)}
	p.job = w.must(t, rig.Request{Op: "start", Argv: append(argv, args...), Input: "\n"}).ID
	t.Cleanup(func() {
		w.vm.Do(rig.Request{Op: "stop", Job: p.job, Signal: 9, Timeout: patience})
	})
	p.expect("testpmd>")
	return p
}

// do types a command, after which testpmd must print the wanted text.
func (p *prompt) do(command string, want ...string) {
	p.Helper()
	p.seen = len(p.w.output(p.T, p.job))
	p.w.must(p.T, rig.Request{Op: "type", Job: p.job, Input: command + "\n"})
	p.expect(append(want, "testpmd>")...)
}

// output is what the last command has printed so far.
func (p *prompt) output() string {
	p.Helper()
	return p.w.output(p.T, p.job)[p.seen:]
}

// expect waits until the last command has printed texts, in any order.
func (p *prompt) expect(want ...string) {
	p.Helper()
	p.w.eventually(p.T, func() string { return fmt.Sprintf("%q in: %s", want, p.output()) },
		func() bool {
			out := strings.Join(strings.Fields(p.output()), " ")
			for _, s := range want {
				if !strings.Contains(out, s) {
					return false
				}
			}
			return true
		})
}

// query repeats a query until it shows what is wanted: the driver reads counters once a second.
func (p *prompt) query(command string, want ...string) {
	p.Helper()
	waited := p.w.vm.Waiting()
	for began := time.Now(); ; {
		p.do(command)
		out, all := strings.Join(strings.Fields(p.output()), " "), true
		for _, s := range want {
			all = all && strings.Contains(out, s)
		}
		if all {
			return
		}
		if time.Since(began) > patience+waited() {
			p.Fatalf("%s: no %q in: %s", command, want, out)
		}
	}
}

// quit ends testpmd, which must succeed.
func (p *prompt) quit() {
	p.Helper()
	p.w.must(p.T, rig.Request{Op: "type", Job: p.job, Input: "quit\n"})
	r, err := p.w.vm.Do(rig.Request{Op: "wait", Job: p.job, Timeout: patience})
	if err != nil || r.Code != 0 {
		p.Errorf("testpmd ended with %d, %v:\n%s", r.Code, err, r.Output)
	}
}

// testRules are the parts about rules of a driver whose objects are made by DEVX.
var testRules = []struct {
	name string
	run  func(t *testing.T, w *world)
}{
	{"killed", testKilled}, {"counters", testFlowCounts}, {"drop", testFlowDrop},
	{"rss", testFlowRSS}, {"mark", testFlowMark}, {"checksum", testChecksumForward},
	{"HWS", testNoHWS},
}

// datagrams are frames of UDP datagrams to a port, from many ports, all of them different.
func datagrams(dst, src net.HardwareAddr, port uint16, n int) [][]byte {
	var out [][]byte
	for i := range n {
		ip := make([]byte, 28, 128)
		ip[0], ip[8], ip[9] = 0x45, 64, 17
		copy(ip[12:], []byte{10, 77, 0, 9, 10, 77, 0, 10})
		binary.BigEndian.PutUint16(ip[20:], uint16(10000+37*i))
		binary.BigEndian.PutUint16(ip[22:], port)
		ip = fmt.Appendf(ip, "datagram %d of %d to port %d", i, n, port)
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		binary.BigEndian.PutUint16(ip[24:], uint16(len(ip)-20))
		f := probe.EtherFrame(dst, src, 0x0800, ip)
		h := frame.Parse(f)
		h.SetIPv4Checksum(f)
		h.SeedChecksum(f)
		sum := frame.Frame{Data: f}
		sum.NeedsCsum, sum.CsumStart, sum.CsumOffset = true, uint16(h.L4At), 6
		sum.CompleteChecksum()
		out = append(out, f)
	}
	return out
}

// returned sends frames, changed by change if it is not nil, and checks that each comes back as it
// was before the change, from the address.
func (w *world) returned(t *testing.T, mac net.HardwareAddr, to uint16, n int,
	change func([]byte)) {
	t.Helper()
	err := w.outside.Do(func() error {
		port, err := lab.OpenPort("wire0")
		if err != nil {
			return err
		}
		defer port.Close()
		missing := map[string]bool{}
		for _, f := range datagrams(mac, port.MAC, to, n) {
			missing[string(f[12:])] = true
			if change != nil {
				f = bytes.Clone(f)
				change(f)
			}
			if err := port.Send(f); err != nil {
				return err
			}
		}
		return collect(port, mac, missing)
	})
	if err != nil {
		t.Errorf("datagrams to port %d: %v", to, err)
	}
}

// testKilled kills testpmd in the midst of it: the next one finds nothing of it.
func testKilled(t *testing.T, w *world) {
	p := w.testpmd(t, "")
	p.do("start")
	r, err := w.vm.Do(rig.Request{Op: "stop", Job: p.job, Signal: 9, Timeout: patience})
	if err != nil || r.Code != 128+9 {
		t.Fatalf("testpmd ended with %d, %v:\n%s", r.Code, err, r.Output)
	}
	p = w.testpmd(t, "")
	p.do("set fwd macswap")
	p.do("start")
	w.returned(t, p.mac, 4010, 20, nil)
	p.quit()
}

// testNoHWS asks for rules by queues (HWS), which the device does not have: the driver says so.
func testNoHWS(t *testing.T, w *world) {
	p := w.testpmd(t, "dv_flow_en=2")
	p.do("port stop 0")
	p.do("flow configure 0 queues_number 1 queues_size 64 counters_number 8 "+
		"aging_counters_number 0 meters_number 0",
		"HWS is not supported", "Operation not supported")
	p.quit()
}

// testFlowCounts counts the datagrams to one port.
func testFlowCounts(t *testing.T, w *world) {
	p := w.testpmd(t, "")
	p.do("set fwd macswap")
	p.do("flow create 0 ingress pattern eth / ipv4 / udp dst is 4000 / end "+
		"actions count / queue index 0 / end", "Flow rule #0 created")
	p.do("start")
	w.returned(t, p.mac, 4000, 20, nil)
	w.returned(t, p.mac, 4001, 10, nil)
	size := 0
	for _, f := range datagrams(p.mac, p.mac, 4000, 20) {
		size += len(f)
	}
	p.query("flow query 0 0 count", "hits_set: 1", "hits: 20", fmt.Sprintf("bytes: %d", size))
	p.do("flow destroy 0 rule 0", "Flow rule #0 destroyed")
	w.returned(t, p.mac, 4000, 5, nil)
	p.quit()
}

// testFlowDrop drops the datagrams to one port, and counts them.
func testFlowDrop(t *testing.T, w *world) {
	p := w.testpmd(t, "")
	p.do("set fwd macswap")
	p.do("flow create 0 ingress pattern eth / ipv4 / udp dst is 4002 / end "+
		"actions count / drop / end", "Flow rule #0 created")
	p.do("start")
	dropped := w.nic.Counters().Drops.FlowDropped
	w.send(t, p.mac, 4002, 12)
	p.query("flow query 0 0 count", "hits: 12")
	if n := w.nic.Counters().Drops.FlowDropped - dropped; n != 12 {
		t.Errorf("%d frames dropped by rules, want 12", n)
	}
	w.returned(t, p.mac, 4003, 5, nil)
	p.quit()
}

// send sends datagrams that do not come back.
func (w *world) send(t *testing.T, mac net.HardwareAddr, to uint16, n int) {
	t.Helper()
	err := w.outside.Do(func() error {
		port, err := lab.OpenPort("wire0")
		if err != nil {
			return err
		}
		defer port.Close()
		for _, f := range datagrams(mac, port.MAC, to, n) {
			if err := port.Send(f); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

var streamStats = regexp.MustCompile(`Queue= ?(\d+) -> TX[^\n]*\n\s*RX-packets: (\d+)`)

// testFlowRSS spreads datagrams over two of four queues.
func testFlowRSS(t *testing.T, w *world) {
	p := w.testpmd(t, "", "--rxq=4", "--txq=4")
	p.do("set fwd macswap")
	p.do("flow create 0 ingress pattern eth / ipv4 / udp / end actions rss types ipv4-udp end "+
		"queues 1 3 end / end", "Flow rule #0 created")
	p.do("start")
	w.returned(t, p.mac, 4004, 64, nil)
	p.do("show fwd stats all", "Accumulated forward statistics")
	got := map[string]string{}
	for _, m := range streamStats.FindAllStringSubmatch(
		strings.ReplaceAll(p.output(), "\r", ""), -1) {
		got[m[1]] = m[2]
	}
	var a, b int
	fmt.Sscan(got["1"], &a)
	fmt.Sscan(got["3"], &b)
	if len(got) != 2 || a == 0 || b == 0 || a+b != 64 {
		t.Errorf("frames by queue %v, want 64 in queues 1 and 3", got)
	}
	p.quit()
}

// testFlowMark marks the datagrams to one port.
func testFlowMark(t *testing.T, w *world) {
	p := w.testpmd(t, "")
	p.do("set fwd macswap")
	p.do("set verbose 1")
	p.do("flow create 0 ingress pattern eth / ipv4 / udp dst is 4005 / end "+
		"actions mark id 0x1234 / queue index 0 / end", "Flow rule #0 created")
	p.do("start")
	w.returned(t, p.mac, 4006, 3, nil)
	if strings.Contains(p.output(), "FDIR matched") {
		t.Errorf("a mark for another port: %s", p.output())
	}
	w.returned(t, p.mac, 4005, 3, nil)
	p.expect("FDIR matched ID=0x1234")
	p.quit()
}

// testChecksumForward has the NIC check and compute checksums.
func testChecksumForward(t *testing.T, w *world) {
	p := w.testpmd(t, "", "--enable-rx-cksum")
	p.do("port stop 0")
	p.do("csum set ip hw 0")
	p.do("csum set udp hw 0")
	p.do("port start 0")
	p.do("set fwd csum")
	var outside net.HardwareAddr
	if err := w.outside.Do(func() error {
		port, err := lab.OpenPort("wire0")
		if err == nil {
			outside = port.MAC
			port.Close()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	p.do("set eth-peer 0 " + outside.String())
	p.do("set verbose 1")
	p.do("start")
	w.returned(t, p.mac, 4007, 20, nil)
	p.expect("RTE_MBUF_F_RX_L4_CKSUM_GOOD RTE_MBUF_F_RX_IP_CKSUM_GOOD")
	for what, at := range map[string]int{"L4": 14 + 20 + 6, "IP": 14 + 10} {
		p.do("set verbose 1") // what follows is printed after it
		w.returned(t, p.mac, 4008, 3, func(f []byte) { f[at] ^= 0x55 })
		p.expect("RTE_MBUF_F_RX_" + what + "_CKSUM_UNKNOWN")
		if good := "RTE_MBUF_F_RX_" + what + "_CKSUM_GOOD"; strings.Contains(p.output(), good) {
			t.Errorf("a wrong %s checksum is good: %s", what, p.output())
		}
	}
	p.quit()
}
