package pcie

import (
	"bytes"
	"testing"
)

// register reads (op_mod 1) or writes a register.
func (d *driver) register(id uint64, write bool, n int, set func(b []byte)) []byte {
	d.t.Helper()
	in := input(0x805, uint16(1-flag(write)), registerData+n)
	registerID.set(in, id)
	if set != nil {
		set(in[registerData:])
	}
	return d.do("ACCESS_REG", in, registerData+n)[registerData:]
}

// The firmware version as devlink reads it: the component with the boot image, its version, and no
// pending version.
func TestFirmwareVersion(t *testing.T) {
	d := newDriver(t)
	cam := d.register(regMCAM, false, 72, nil)
	if !mcamMCQI.is(cam) || !mcamMCQS.is(cam) {
		t.Errorf("MCAM % x", cam)
	}
	if other := d.register(regMCAM, false, 72, func(b []byte) { b[3] = 1 }); mcamMCQI.is(other) {
		t.Errorf("MCAM of group 1: % x", other)
	}
	mcqs := d.register(regMCQS, false, 16, nil)
	if mcqsKind.get(mcqs) != mcqsBootCode || mcqs[11]&0xf != 0 {
		t.Errorf("MCQS % x", mcqs)
	}
	mcqi := d.register(regMCQI, false, 24+124, func(b []byte) { mcqiKind.set(b, mcqiVersions) })
	if v := mcqiVersion.get(mcqi); v != 22<<24|43<<16|2026 {
		t.Errorf("version %#x", v)
	}
}

// A module's memory as ethtool -m reads it, 48 bytes at a time.
func TestModule(t *testing.T) {
	d := newDriver(t)
	if p := d.register(regPMLP, false, 64, nil); pmlpWidth.get(p) != 1 || p[7] != 0 {
		t.Errorf("PMLP % x", p)
	}
	read := func(module, i2c, page, at, n uint64) (uint64, []byte) {
		b := d.register(regMCIA, false, 144, func(b []byte) {
			mciaModule.set(b, module)
			mciaI2C.set(b, i2c)
			mciaPage.set(b, page)
			mciaAddress.set(b, at)
			mciaSize.set(b, n)
		})
		return mciaStatus.get(b), b[mciaData : mciaData+48]
	}
	var all []byte
	for at := uint64(0); at < 96; at += 48 {
		status, b := read(0, 0x50, 0, at, 48)
		if all = append(all, b...); status != 0 {
			t.Fatalf("status %d at %d", status, at)
		}
	}
	if all[0] != 3 || !bytes.Equal(all[20:36], []byte("RDMA-NETSTACK   ")) {
		t.Errorf("% x", all)
	}
	for _, part := range [][2]int{{0, 63}, {64, 95}} {
		var sum byte
		for _, b := range all[part[0]:part[1]] {
			sum += b
		}
		if all[part[1]] != sum {
			t.Errorf("checksum at %d is %#x, want %#x", part[1], all[part[1]], sum)
		}
	}
	if status, b := read(0, 0x51, 0, 0, 48); status != 0 || !bytes.Equal(b, make([]byte, 48)) {
		t.Errorf("second page: status %d, % x", status, b)
	}
	for name, q := range map[string][5]uint64{"another module": {1, 0x50, 0, 0, 1},
		"another page": {0, 0x50, 3, 0, 1}, "another address": {0, 0x52, 0, 0, 1},
		"beyond the page": {0, 0x50, 0, 250, 48}} {
		if status, _ := read(q[0], q[1], q[2], q[3], q[4]); status == 0 {
			t.Errorf("%s: no error", name)
		}
	}
}

// The FEC mode that a driver requests becomes active, and reads show it.
func TestFEC(t *testing.T) {
	d := newDriver(t)
	if !pcamPPLM.is(d.register(regPCAM, false, 80, nil)) {
		t.Error("PCAM does not know PPLM")
	}
	b := d.register(regPPLM, false, 120, nil)
	if pplmActive.get(b) != fecRS || pplmCap25G.get(b) != 7 || pplmWant25G.get(b) != 0 {
		t.Errorf("PPLM % x", b[:32])
	}
	d.register(regPPLM, true, 120, func(b []byte) { pplmWant25G.set(b, fecFirecode) })
	b = d.register(regPPLM, false, 120, nil)
	if pplmActive.get(b) != fecFirecode || pplmWant25G.get(b) != fecFirecode {
		t.Errorf("PPLM % x after asking for firecode", b[:32])
	}
}
