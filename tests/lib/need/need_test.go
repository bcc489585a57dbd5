package need

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fake records what need does to a test instead of doing it.
type fake struct {
	testing.TB
	skipped, failed string
}

func (f *fake) Helper()      {}
func (f *fake) Name() string { return "TestFake" }
func (f *fake) Skip(args ...any) {
	f.skipped = args[0].(string)
}
func (f *fake) Fatalf(string, ...any) { f.failed = "yes"; panic(f) }

// run calls need with a fake test and returns the result.
func run(need func(testing.TB)) (f *fake) {
	f = &fake{}
	defer func() {
		if p := recover(); p != nil && p != any(f) {
			panic(p)
		}
	}()
	need(f)
	return f
}

func TestThat(t *testing.T) {
	lack := errors.New("there is none")
	for _, tt := range []struct {
		name, env         string
		err               error
		wantSkip, wantErr bool
	}{
		{"met", "", nil, false, false},
		{"met where required", "all", nil, false, false},
		{"lacking", "", lack, true, false},
		{"lacking, all required", "all", lack, false, true},
		{"lacking, required by name", "kvm,moon", lack, false, true},
		{"lacking, others required", "kvm,moonlight", lack, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("NEED", tt.env)
			t.Setenv("NEED_LOG", "") // the skips below are not real
			f := run(func(t testing.TB) { That(t, "moon", tt.err) })
			if (f.skipped != "") != tt.wantSkip || (f.failed != "") != tt.wantErr {
				t.Errorf("skipped %q, failed %q", f.skipped, f.failed)
			}
			if tt.wantSkip && f.skipped != "needs moon: there is none" {
				t.Errorf("reason is %q", f.skipped)
			}
		})
	}
}

// TestLong skips with -short only, whatever NEED says, and leaves no record.
func TestLong(t *testing.T) {
	log := filepath.Join(t.TempDir(), "skips")
	t.Setenv("NEED", "all")
	t.Setenv("NEED_LOG", log)
	short := flag.Lookup("test.short")
	before := short.Value.String()
	defer short.Value.Set(before)
	for _, set := range []string{"false", "true"} {
		short.Value.Set(set)
		want := map[string]string{"true": "not with -short: 5 s of timeouts"}[set]
		f := run(func(t testing.TB) { Long(t, "5 s of timeouts") })
		if f.skipped != want || f.failed != "" {
			t.Errorf("-short=%s: skipped %q, failed %q", set, f.skipped, f.failed)
		}
	}
	if _, err := os.Stat(log); err == nil {
		t.Error("it is in the record")
	}
}

func TestSkipsAreRecorded(t *testing.T) {
	log := filepath.Join(t.TempDir(), "skips")
	t.Setenv("NEED", "")
	t.Setenv("NEED_LOG", log)
	for range 2 {
		run(func(t testing.TB) { That(t, "moon", errors.New("there is none")) })
	}
	got, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	pkg := strings.TrimSuffix(filepath.Base(os.Args[0]), ".test")
	if want := strings.Repeat("skipped "+pkg+" TestFake: needs moon: there is none\n",
		2); string(got) != want {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

func TestLacksAreNoticed(t *testing.T) {
	t.Setenv("NEED", "")
	t.Setenv("NEED_LOG", "")
	t.Setenv("RDMA_DEVICE", "")
	for name, need := range map[string]func(testing.TB){
		"tool":     func(t testing.TB) { Tool(t, "no-such-program") },
		"header":   func(t testing.TB) { Header(t, "no/such/header.h") },
		"hardware": func(t testing.TB) { Hardware(t) },
		"qemu":     func(t testing.TB) { QEMU(t, 1<<20, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			f := run(need)
			if f.skipped == "" {
				t.Error("not skipped")
			}
			t.Log(f.skipped)
		})
	}
}

func TestHardwareIsChecked(t *testing.T) {
	root := t.TempDir()
	for dev, driver := range map[string]string{"mlx5_0": "mlx5_core", "rxe0": "rdma_rxe"} {
		dir := filepath.Join(root, dev, "device")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../../drivers/"+driver, filepath.Join(dir, "driver")); err != nil {
			t.Fatal(err)
		}
	}
	for dev, usable := range map[string]bool{"mlx5_0": true, "rxe0": false,
		"absent": false, "": false} {
		if err := checkHardware(root, dev); (err == nil) != usable {
			t.Errorf("%q: %v", dev, err)
		}
	}
}

func TestQEMUVersion(t *testing.T) {
	qemu := filepath.Join(t.TempDir(), "qemu")
	script := "#!/bin/sh\necho 'QEMU emulator version 10.1.2 (Debian)'\n"
	if err := os.WriteFile(qemu, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		major, minor int
		ok           bool
	}{{9, 9, true}, {10, 1, true}, {10, 2, false}, {11, 0, false}} {
		if err := checkQEMU(qemu, tt.major, tt.minor); (err == nil) != tt.ok {
			t.Errorf("%d.%d: %v", tt.major, tt.minor, err)
		}
	}
}

// TestProbes runs every probe of the machine: a failed probe must give a reason, and none may leave
// anything behind.
func TestProbes(t *testing.T) {
	for name, probe := range map[string]func() error{"netns": probeNetNS,
		"userns": probeUserNS, "tun": probeTUN} {
		t.Logf("%s: %v", name, probe())
	}
	t.Setenv("NEED", "")
	t.Setenv("NEED_LOG", "")
	for name, need := range map[string]func(testing.TB){
		"root": Root, "kvm": KVM, "netns": NetNS, "userns": UserNS, "tun": TUN,
		"compiler": func(t testing.TB) { Compiler(t) },
		"header":   func(t testing.TB) { Header(t, "stdio.h") },
	} {
		if f := run(need); f.skipped != "" && !strings.HasPrefix(f.skipped, "needs "+name+": ") &&
			name != "header" {
			t.Errorf("%s: reason %q", name, f.skipped)
		}
	}
}
