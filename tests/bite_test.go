package tests

import (
	"fmt"
	"strings"
	"testing"
)

// TestRulesBite gives each rule sources that break it, and one that does not:
// a rule that cannot fail is no rule.
func TestRulesBite(t *testing.T) {
	imports := func(names ...string) string {
		return "package p\n\nimport (\n\t" + strings.Join(names, "\n\t") + "\n)\n"
	}
	own := func(pkg string) string { return fmt.Sprintf("_ %q", module+pkg) }
	other := func(pkg string) string { return fmt.Sprintf("_ %q", pkg) }
	for _, tt := range []struct {
		name, file, src string
		rule            func(*file) []string
		want            string // "" for a source that is right
	}{
		{"driver to its layers", "dv/rx.go",
			imports(own("dv/mlx5"), own("dv/uverbs")), checkImports, ""},
		{"driver to model", "dv/rx.go", imports(own("simnic")),
			checkImports, "dv imports simnic"},
		{"driver's test to model", "dv/rx_test.go", imports(own("simnic"), own("tests/lib/need")),
			checkImports, ""},
		{"model to driver", "simnic/rx.go", imports(own("dv")),
			checkImports, "simnic imports dv"},
		{"model's test to driver", "simnic/rx_test.go", imports(own("dv")),
			checkImports, "simnic imports dv"},
		{"a page of 4 KiB mapped in a test", "simnic/kernel/x_linux_test.go",
			"package kernel\n\nfunc f() { n.Mmap(0x300000, 4096, true) }\n", checkPages, "line 3"},
		{"memory in pages of 4 KiB in a test", "dv/x_test.go",
			"package dv\n\nvar n = (m + 4095) &^ 4095\n", checkPages, "line 3"},
		{"a page mapped in a test", "dv/x_test.go",
			"package dv\n\nfunc f() { n.Mmap(0, os.Getpagesize(), true) }\n", checkPages, ""},
		{"model in PCI to driver", "tests/vm/pcie/x.go", imports(own("dv")),
			checkImports, "imports dv"},
		{"external test to its package", "simnic/x_test.go",
			imports(own("simnic")), checkImports, ""},
		{"bytes to anything", "dv/mlx5/x.go", imports(own("internal/mmio")),
			checkImports, "dv/mlx5 imports"},
		{"bytes to x/sys", "dv/mlx5/x.go", imports(other(xsys + "/unix")), checkImports,
			"imports golang.org/x/sys"},
		{"driver to gVisor", "dv/x.go", imports(other(gvisor + "pkg/buffer")),
			checkImports, "dv imports gvisor.dev"},
		{"endpoint to gVisor", "link/rdma/x.go",
			imports(other(gvisor + "pkg/buffer")), checkImports, ""},
		{"app to stack", "apps/httpd/x.go", imports(own("stack")), checkImports,
			"apps/httpd imports stack"},
		{"app to DNS", "apps/httpd/x.go", imports(other(dns)), checkImports,
			"imports github.com/miekg/dns"},
		{"DNS app to DNS", "apps/dnsd/x.go", imports(other(dns), `"net"`), checkImports, ""},
		{"name that only begins alike", "apps/dnsd/x.go",
			imports(other(dns + "sec")), checkImports, "dnssec"},
		{"netlink in its package", "dv/internal/netdev/x_linux.go",
			imports(other(netlink)), checkImports, ""},
		{"netlink elsewhere", "dv/device.go", imports(other(netlink)), checkImports, "netlink"},
		{"system calls in their files", "simnic/kernel/x_linux.go",
			imports(other(xsys)), checkImports, ""},
		{"system calls elsewhere", "simnic/kernel/x.go", imports(other(xsys)),
			checkImports, "outside *_linux.go"},
		{"x/sys in the model", "simnic/nic.go", imports(other(xsys + "/unix")), checkImports,
			"simnic imports golang.org/x/sys"},
		{"model to its kernel", "simnic/nic.go", imports(own("simnic/kernel")), checkImports,
			"simnic imports simnic/kernel"},
		{"wire to model", "simnic/wire/x.go", imports(own("simnic")), checkImports,
			"simnic/wire imports simnic"},
		{"frame to wire", "simnic/frame/x.go", imports(own("simnic/wire")), checkImports,
			"simnic/frame imports simnic/wire"},
		{"kernel to driver", "simnic/kernel/x.go", imports(own("dv")), checkImports,
			"simnic/kernel imports dv"},
		{"x/sys in the model's TAP", "simnic/wire/tap_linux.go",
			imports(other(xsys + "/unix")), checkImports, ""},
		{"command to bytes", "cmd/rdma-netstack/x.go", imports(own("dv/mlx5")),
			checkImports, "imports dv/mlx5"},
		{"command to its own", "cmd/rdma-netstack/x.go",
			imports(own("cmd/rdma-netstack/lab")), checkImports, ""},
		{"part of the command to stack", "cmd/rdma-netstack/lab/x.go",
			imports(own("stack")), checkImports, ""},
		{"stack to command", "stack/x.go", imports(own("cmd/rdma-netstack/lab")),
			checkImports, "stack imports cmd"},
		{"tests to anything", "tests/vm/x.go",
			imports(own("dv"), own("simnic"), other(gvisor+"pkg/buffer")), checkImports, ""},
		{"tests to XDP loader", "tests/vm/x.go", imports(other(ebpf)), checkImports,
			"imports github.com/cilium/ebpf"},
		{"measurements to XDP loader", "tests/bench/peers/x.go",
			imports(other(ebpf+"/link"), own("stack")), checkImports, ""},
		{"unknown package", "util/x.go", "package util\n", checkImports, "not in the import map"},
		{"unknown part of a known one", "dv/mlx5/extra/x.go", "package extra\n",
			checkImports, "not in the import map"},
		{"unknown module", "stack/x.go", imports(other("example.org/x")), checkImports,
			"stack imports example.org/x"},
		{"unsafe in the model", "simnic/x.go", imports(`"unsafe"`),
			checkImports, "imports unsafe"},
		{"unsafe in an app", "apps/httpd/x_unsafe.go", imports(`"unsafe"`),
			checkImports, "imports unsafe"},
		{"unsafe in a test", "internal/mmio/x_test.go", imports(`"unsafe"`),
			checkImports, "imports unsafe"},
		{"unsafe where it belongs", "internal/mmio/x_unsafe.go",
			imports(`"unsafe"`), checkImports, ""},
		{"cgo", "internal/mmio/x_unsafe.go", imports(`"C"`), checkImports, "cgo"},
		{"gVisor's stack unnamed", "link/rdma/x.go",
			imports(fmt.Sprintf("%q", gvStack)), checkImports, "gstack"},
		{"gVisor's stack misnamed", "link/rdma/x.go",
			imports(fmt.Sprintf("tstack %q", gvStack)), checkImports, "gstack"},
		{"gVisor's stack named", "link/rdma/x.go",
			imports(fmt.Sprintf("gstack %q", gvStack)), checkImports, ""},

		{"format", "dv/x.go", "package dv\nvar   x int\n", checkFormat, "gofmt"},
		{"formatted", "dv/x.go", "package dv\n\nvar x int\n", checkFormat, ""},
		{"init", "dv/x.go", "package dv\n\nfunc init() {}\n", checkInit, "init"},
		{"method init", "dv/x.go", "package dv\n\nfunc (x) init() {}\n", checkInit, ""},
		{"skip", "dv/x_test.go", "package dv\n\nfunc f() { t.Skip() }\n",
			checkSkips, "line 3 calls t.Skip"},
		{"skip of a benchmark", "dv/x_test.go", "package dv\n\nfunc f() { b.Skipf(`no`) }\n",
			checkSkips, "b.Skipf"},
		{"skip in need", "tests/lib/need/x.go", "package need\n\nfunc f() { t.Skip() }\n",
			checkSkips, ""},
		{"print", "stack/x.go", "package stack\n\nfunc f() { fmt.Println() }\n",
			checkQuiet, "fmt.Println"},
		{"exit", "apps/httpd/x.go", "package httpd\n\nfunc f() { os.Exit(1) }\n", checkQuiet,
			"os.Exit"},
		{"log", "dv/x.go", "package dv\n\nfunc f() { log.Fatalf(`x`) }\n",
			checkQuiet, "log.Fatalf"},
		{"exit of the command", "cmd/rdma-netstack/main.go",
			"package main\n\nfunc f() { os.Exit(1) }\n", checkQuiet, ""},
		{"long file", "dv/x.go", "package dv\n" + strings.Repeat("\n", maxFileLines), checkSizes,
			"1501 lines"},
		{"file of full length", "dv/x.go", "package dv\n" + strings.Repeat("\n", maxFileLines-1),
			checkSizes, ""},
		{"long function", "dv/x.go", "package dv\n\nfunc f() {" +
			strings.Repeat("\n", maxFunctionLines) + "}\n", checkSizes, "dv/x.go:f has 121 lines"},
		{"long test", "dv/x_test.go", "package dv\n\nfunc f() {" +
			strings.Repeat("\n", maxFunctionLines) + "}\n", checkSizes, ""},
		{"long line", "dv/x.go", "package dv\n\nvar x = \"" + strings.Repeat("x", 91) + "\"\n",
			checkColumns, "line 3 has 101 columns"},
		{"line of full length", "dv/x.go",
			"package dv\n\nvar x = \"" + strings.Repeat("x", 90) + "\"\n", checkColumns, ""},
		{"long line of tabs", "dv/x.go",
			"package dv\n\nvar (\n\tx = \"" + strings.Repeat("x", 91) + "\"\n)\n",
			checkColumns, "line 4 has 101 columns"},
		{"long comment", "dv/x.go", "package dv\n\n// " + strings.Repeat("x", 98) + "\n",
			checkColumns, "line 3"},
		{"long URL", "dv/x.go",
			"package dv\n\n// https://" + strings.Repeat("x", 98) + "\n", checkColumns, ""},
		{"long data", "dv/x.go", "package dv\n\nvar x = `\n" + strings.Repeat("x", 101) +
			"\n`\n", checkColumns, ""},
		{"long tag", "dv/x.go", "package dv\n\ntype x struct {\n\tA int `x:\"" +
			strings.Repeat("x", 98) + "\"`\n}\n", checkColumns, "line 4"},
		{"doc of another name", "dv/x.go", "package dv\n\n// oldName is x.\nvar newName int\n",
			checkDocNames, "documents oldName, but newName"},
		{"doc of the name", "dv/x.go", "package dv\n\n// newName is x.\nvar newName int\n",
			checkDocNames, ""},
		{"doc of several of a group", "dv/x.go",
			"package dv\n\nconst (\n\t// aB and bC are x.\n\tbC = 1\n\taB = 2\n)\n",
			checkDocNames, ""},
		{"doc of none of a group", "dv/x.go",
			"package dv\n\nconst (\n\t// aB is x.\n\tbC = 1\n\tcD = 2\n)\n",
			checkDocNames, "documents aB, but bC, cD"},

		{"assembly", "dv/x.s", "TEXT\n", checkAssembly, "assembly outside"},
		{"assembly where it belongs", "internal/mmio/x.s", "TEXT\n", checkAssembly, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, err := parse(tt.file, []byte(tt.src))
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(tt.rule(f), "; ")
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("found %q, want %q", got, tt.want)
			}
		})
	}
}

// TestUnneededReasonsBite gives the list of long files one that is short.
func TestUnneededReasonsBite(t *testing.T) {
	f, err := parse("dv/x.go", []byte("package dv\n"))
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{TB: t}
	checkReasons(r, []*file{f}, map[string]string{"dv/x.go": "no reason"})
	if r.errors != 1 {
		t.Errorf("%d errors", r.errors)
	}
}

// recorder counts errors instead of failing.
type recorder struct {
	testing.TB
	errors int
}

func (r *recorder) Errorf(string, ...any) { r.errors++ }
