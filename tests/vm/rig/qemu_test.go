package rig

import "testing"

func TestQEMUVersion(t *testing.T) {
	for _, c := range []struct{ said, want string }{
		{"QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1~bpo13+1)\nCopyright (c) 2003-2026 " +
			"Fabrice Bellard\n", ""},
		{"QEMU emulator version 10.1.0\n", ""},
		{"QEMU emulator version 10.0.8 (Debian 1:10.0.8+ds-0+deb13u1)\n",
			"QEMU is 10.0, and only 10.1 and later can drive a device over vfio-user"},
		{"QEMU emulator version 7.2.19 (Debian 1:7.2+dfsg-7+deb12u15)\n",
			"QEMU is 7.2, and only 10.1 and later can drive a device over vfio-user"},
		{"no such thing\n", `QEMU does not say its version: "no such thing"`},
	} {
		got := ""
		if err := checkVersion(c.said); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q: %q, want %q", c.said, got, c.want)
		}
	}
}
