//go:build linux

package vm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// Features of the device that the driver uses through stock kernels. Each test reads a counter that
// shows that the feature was used.

func testFeatures(t *testing.T, w *world) {
	for _, f := range []check{
		{"defaults", testDefaults},
		{"sending", testSharedDescriptors},
		{"striding", testStriding},
		{"moderation", testModeration},
		{"jumbo frames", testJumbo},
		{"BlueFlame", testBlueFlame},
		{"VLAN", testVLAN},
	} {
		t.Run(f.name, func(t *testing.T) {
			need.That(t, "time", timeFor(t, checkTime))
			f.run(t, w)
		})
	}
}

// features fails the test unless these features are on.
func (r *bareSlice) features(t *testing.T, names ...string) {
	t.Helper()
	on := map[string]bool{}
	for _, f := range r.opened.Features {
		on[f.Name] = f.On
	}
	for _, n := range names {
		if !on[n] {
			t.Errorf("%s is not on: %+v", n, r.opened.Features)
		}
	}
}

// testDefaults floods a slice with default settings: completions are compressed, and frames have
// time stamps.
func testDefaults(t *testing.T, w *world) {
	before := w.nic.Counters()
	s := w.slice(t)
	s.features(t, "receive checksum", "receive spreading (RSS)", "completion compression",
		"shared multicast", "receive timestamps",
		"send checksum", "segmentation (TSO)")
	if w.nic.Caps().EnhancedMPW {
		s.features(t, "multi-packet send")
	} else {
		s.features(t, "headers in the descriptor")
	}
	stop := w.flooding(t)
	var r rig.SliceReport
	compressed := func() (n uint64) {
		for _, q := range r.Stats.Rx {
			n += q.Compressed
		}
		return n
	}
	eventually(t, func() string { return fmt.Sprintf("compressed completions: %+v", r.Stats) },
		func() bool { r = s.now(t); return compressed() > 100 })
	stop()
	w.datagrams(t, slice4.Addr())
	r = s.stop(t)
	if wrote := w.nic.Counters().CompressedCQEs - before.CompressedCQEs; compressed() > wrote {
		t.Errorf("%d packets in compressed completions, the NIC wrote %d", compressed(), wrote)
	}
	if r.Unstamped != 0 || r.Unverified != 0 || r.Astray != 0 || r.Echoed != flows {
		t.Errorf("%d frames without a right time stamp, %d not verified, %d on the wrong queue, "+
			"%d echoed of %d",
			r.Unstamped, r.Unverified, r.Astray, r.Echoed, flows)
	}
}

// testSharedDescriptors has frames share send descriptors, if the NIC can.
func testSharedDescriptors(t *testing.T, w *world) {
	before := w.nic.Counters()
	out := w.run(t, "/init", "flood", "-mac", sliceMAC, "-settle")
	var posted, multi uint64
	if _, err := fmt.Sscanf(out, "posted %d, in shared descriptors %d", &posted,
		&multi); err != nil || posted == 0 || multi != posted && multi != 0 ||
		(multi > 0) != w.nic.Caps().EnhancedMPW {
		t.Errorf("%v: %s", err, out)
	}
	if n := w.nic.Counters().SendWQEs - before.SendWQEs; multi > 0 && n > posted/2 ||
		n < posted-multi || n == 0 {
		t.Errorf("%d frames took %d descriptors", posted, n)
	}
}

// testStriding receives into buffers that several frames share.
func testStriding(t *testing.T, w *world) {
	s := w.slice(t, "-striding")
	s.features(t, "striding receive ring")
	if w.nic.Caps().MiniFormats>>simnic.MiniChecksumStride&1 != 0 {
		s.features(t, "completion compression")
	}
	w.datagrams(t, slice4.Addr())
	w.datagrams(t, slice6.Addr())
	if r := s.stop(t); r.Echoed != 2*flows || r.Unverified != 0 {
		t.Errorf("%d datagrams echoed of %d, %d not verified", r.Echoed, 2*flows, r.Unverified)
	}
}

// testModeration turns event moderation on: the kernel passes the setting on to the device.
func testModeration(t *testing.T, w *world) {
	modified := func() uint64 { return w.fn.Commands()["MODIFY_CQ"].Done }
	before := modified()
	s := w.slice(t, "-events", "8")
	s.features(t, "event moderation")
	if n := modified() - before; n < 2 { // more if the netdev's own moderation is active
		t.Errorf("%d completion queues of 2 hold events back", n)
	}
	w.datagrams(t, slice4.Addr())
	s.stop(t)
}

// jumbo is the MTU of a port for jumbo frames.
const jumbo = 9000

// testJumbo has the guest raise the port's MTU, as its user would, and sends datagrams both ways
// that take several buffers of a receive descriptor.
func testJumbo(t *testing.T, w *world) {
	w.mtu(t, jumbo)
	defer w.mtu(t, 1500)
	s := w.slice(t)
	s.features(t, "multi-segment receive")
	const datagrams = 16
	for i := range datagrams {
		want := bytes.Repeat([]byte{byte(i), 0xa5}, 2000+100*i)
		if err := w.exchange(slice4.Addr(), want, patience); err != nil {
			t.Errorf("%d bytes: %v", len(want), err)
		}
	}
	r, segmented := s.stop(t), uint64(0)
	for _, q := range r.Stats.Rx {
		segmented += q.Segmented
	}
	if segmented < datagrams || r.Echoed != datagrams || r.Unverified != 0 {
		t.Errorf("%d frames in several buffers, %d echoed of %d, %d not verified", segmented,
			r.Echoed, datagrams, r.Unverified)
	}
}

// mtu sets the MTU of the guest's netdev, and of the wire outside.
func (w *world) mtu(t *testing.T, mtu int) {
	t.Helper()
	w.run(t, "ip", "link", "set", "eth0", "mtu", fmt.Sprint(mtu))
	err := w.outside.Do(func() error {
		link, err := netlink.LinkByName("wire0")
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(link, mtu)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// testBlueFlame sends descriptors with their doorbells, through a page of the device that the
// kernel maps write-combining. Kernels from 6.12 on test write-combining first. An emulated device
// fails that test, and the kernel offers no such page: then BlueFlame is off, the device reports
// why, and everything else works.
func testBlueFlame(t *testing.T, w *world) {
	s := w.slice(t, "-blueflame")
	i := slices.IndexFunc(s.opened.Features,
		func(f dv.Feature) bool { return f.Name == "BlueFlame" })
	f := s.opened.Features[i]
	if !f.On && (!strings.Contains(f.Why, "doorbells") || w.kernel.Version == "6.1") {
		t.Errorf("BlueFlame: %+v", f)
	}
	w.datagrams(t, slice4.Addr())
	r, carried := s.stop(t), uint64(0)
	for _, q := range r.Stats.Tx {
		carried += q.BlueFlames
	}
	if f.On != (carried > 0) || r.Echoed != flows {
		t.Errorf("%+v: %d doorbells with their descriptor sent, %d datagrams echoed of %d",
			f, carried, r.Echoed, flows)
	}
}

// testVLAN receives the frames of one VLAN, without their tags, and none of another.
func testVLAN(t *testing.T, w *world) {
	s := w.slice(t, "-vlan", "100")
	s.features(t, "VLAN stripping", "VLAN steering")
	missed := w.nic.Counters().Drops.SteerMissed
	w.tagged(t, 100)
	w.tagged(t, 200)
	eventually(t, func() string { return "the frames of network 200 being nobody's" },
		func() bool { return w.nic.Counters().Drops.SteerMissed >= missed+strays })
	var r rig.SliceReport
	eventually(t, func() string {
		return fmt.Sprintf("the frames of network 100: %d are there",
			r.Tagged)
	}, func() bool { r = s.now(t); return r.Tagged >= strays })
	if r = s.stop(t); r.Tagged != strays || strings.Contains(fmt.Sprint(r.Features),
		"tags are taken out in software") {
		t.Errorf("%d frames had their tag taken out of %d: %+v", r.Tagged, strays, r.Features)
	}
}

// tagged sends frames of a VLAN to the slice.
func (w *world) tagged(t *testing.T, vlan uint16) {
	t.Helper()
	mac, err := net.ParseMAC(sliceMAC)
	if err != nil {
		t.Fatal(err)
	}
	payload := append(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, vlan),
		probe.Experimental), make([]byte, 100)...)
	err = w.outside.Do(func() error {
		port, err := lab.OpenPort("wire0")
		if err != nil {
			return err
		}
		defer port.Close()
		for range strays {
			if err := port.Send(probe.EtherFrame(mac, port.MAC, 0x8100, payload)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
