package uverbs

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseCapEff(t *testing.T) {
	for _, tc := range []struct {
		name, status string
		caps         uint64
		ok           bool
	}{
		{"root",
			"Name:\tx\nCapInh:\t0000000000000000\nCapPrm:\t000001ffffffffff\n" +
				"CapEff:\t000001ffffffffff\n",
			0x1ffffffffff, true},
		{"user", "CapEff:\t0000000000000000\n", 0, true},
		{"net raw only", "CapPrm:\t0000000000002000\nCapEff:\t0000000000002000\nCapBnd:\t00",
			1 << 13, true},
		{"no line", "Name:\tx\n", 0, false},
		{"garbage", "CapEff:\tzz\n", 0, false},
		{"empty", "", 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			caps, err := parseCapEff([]byte(tc.status))
			if caps != tc.caps || (err == nil) != tc.ok {
				t.Errorf("%#x, %v", caps, err)
			}
		})
	}
}

// TestEnvironmentHere compares with what capget and the raw limit say.
func TestEnvironmentHere(t *testing.T) {
	env, err := ReadEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	caps, err := EffectiveCapabilities()
	if err != nil {
		t.Fatal(err)
	}
	if env.NetRaw != (caps>>13&1 == 1) || env.IPCLock != (caps>>14&1 == 1) ||
		env.RawIO != (caps>>17&1 == 1) {
		t.Errorf("%+v of %#x", env, caps)
	}
	limit, err := MemlockLimit()
	if err != nil || env.Memlock != limit {
		t.Errorf("limit %d, %v in %+v", limit, err, env)
	}
}

func TestCheckMemlock(t *testing.T) {
	for _, tc := range []struct {
		name   string
		env    Environment
		needed uint64
		want   error
	}{
		{"fits", Environment{Memlock: 1 << 20}, 1 << 20, nil},
		{"does not fit", Environment{Memlock: 1 << 20}, 1<<20 + 1, unix.ENOMEM},
		{"zero", Environment{}, 1, unix.EPERM},
		{"privileged", Environment{IPCLock: true}, 1 << 40, nil},
		{"unlimited", Environment{Memlock: MemlockUnlimited}, 1 << 40, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.env.CheckMemlock(tc.needed)
			if !errors.Is(err, tc.want) {
				t.Fatal(err)
			}
			if err != nil && (!strings.Contains(err.Error(), "needs "+sizeText(tc.needed)) ||
				!strings.Contains(err.Error(), "limit is "+sizeText(tc.env.Memlock))) {
				t.Errorf("%v lacks a figure", err)
			}
		})
	}
}
