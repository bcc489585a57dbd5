package uverbs

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

var update = flag.Bool("update", false, "write testdata from what the C compiler says")

// cStruct pairs a Go struct with its C original.
type cStruct struct {
	goType any
	name   string // C struct
	next   string // first C field that the Go struct leaves out; "" for a whole struct
}

var cStructs = []cStruct{
	{IoctlHdr{}, "ib_uverbs_ioctl_hdr", ""},
	{IoctlAttr{}, "ib_uverbs_attr", ""},
	{GetContextReq{}, "ib_uverbs_get_context", ""},
	{GetContextResp{}, "ib_uverbs_get_context_resp", ""},
	{QueryDeviceResp{}, "ib_uverbs_query_device_resp", ""},
	{ExQueryDeviceReq{}, "ib_uverbs_ex_query_device", ""},
	{ODPCaps{}, "ib_uverbs_odp_caps", ""},
	{RSSCaps{}, "ib_uverbs_rss_caps", ""},
	{TMCaps{}, "ib_uverbs_tm_caps", ""},
	{CQModerationCaps{}, "ib_uverbs_cq_moderation_caps", ""},
	{ExQueryDeviceResp{}, "ib_uverbs_ex_query_device_resp", ""},
	{QueryPortReq{}, "ib_uverbs_query_port", ""},
	{QueryPortResp{}, "ib_uverbs_query_port_resp", ""},
	{QueryPortRespEx{}, "ib_uverbs_query_port_resp_ex", ""},
	{AllocPDReq{}, "ib_uverbs_alloc_pd", ""},
	{AllocPDResp{}, "ib_uverbs_alloc_pd_resp", ""},
	{DeallocPDReq{}, "ib_uverbs_dealloc_pd", ""},
	{RegMRReq{}, "ib_uverbs_reg_mr", ""},
	{RegMRResp{}, "ib_uverbs_reg_mr_resp", ""},
	{DeregMRReq{}, "ib_uverbs_dereg_mr", ""},
	{CreateCompChannelReq{}, "ib_uverbs_create_comp_channel", ""},
	{CreateCompChannelResp{}, "ib_uverbs_create_comp_channel_resp", ""},
	{ExCreateCQReq{}, "ib_uverbs_ex_create_cq", ""},
	{CreateCQResp{}, "ib_uverbs_create_cq_resp", ""},
	{ExCreateCQResp{}, "ib_uverbs_ex_create_cq_resp", ""},
	{ExModifyCQReq{}, "ib_uverbs_ex_modify_cq", ""},
	{DestroyCQReq{}, "ib_uverbs_destroy_cq", ""},
	{DestroyCQResp{}, "ib_uverbs_destroy_cq_resp", ""},
	{CompEventDesc{}, "ib_uverbs_comp_event_desc", ""},
	{AsyncEventDesc{}, "ib_uverbs_async_event_desc", ""},
	{QPDest{}, "ib_uverbs_qp_dest", ""},
	{ExCreateQPReq{}, "ib_uverbs_ex_create_qp", ""},
	{CreateQPResp{}, "ib_uverbs_create_qp_resp", ""},
	{ExCreateQPResp{}, "ib_uverbs_ex_create_qp_resp", ""},
	{ModifyQPReq{}, "ib_uverbs_modify_qp", ""},
	{ExModifyQPReq{}, "ib_uverbs_ex_modify_qp", ""},
	{ExModifyQPResp{}, "ib_uverbs_ex_modify_qp_resp", ""},
	{QueryQPReq{}, "ib_uverbs_query_qp", ""},
	{QueryQPResp{}, "ib_uverbs_query_qp_resp", ""},
	{DestroyQPReq{}, "ib_uverbs_destroy_qp", ""},
	{DestroyQPResp{}, "ib_uverbs_destroy_qp_resp", ""},
	{ExCreateWQReq{}, "ib_uverbs_ex_create_wq", ""},
	{ExCreateWQResp{}, "ib_uverbs_ex_create_wq_resp", ""},
	{ExDestroyWQReq{}, "ib_uverbs_ex_destroy_wq", ""},
	{ExDestroyWQResp{}, "ib_uverbs_ex_destroy_wq_resp", ""},
	{ExModifyWQReq{}, "ib_uverbs_ex_modify_wq", ""},
	{ExCreateRWQIndTblReq{}, "ib_uverbs_ex_create_rwq_ind_table", ""},
	{ExCreateRWQIndTblResp{}, "ib_uverbs_ex_create_rwq_ind_table_resp", ""},
	{ExDestroyRWQIndTblReq{}, "ib_uverbs_ex_destroy_rwq_ind_table", ""},
	{FlowAttrHdr{}, "ib_uverbs_flow_attr", ""},
	{CreateFlowReq{}, "ib_uverbs_create_flow", ""},
	{CreateFlowResp{}, "ib_uverbs_create_flow_resp", ""},
	{DestroyFlowReq{}, "ib_uverbs_destroy_flow", ""},
	{FlowSpecHdr{}, "ib_uverbs_flow_spec_hdr", ""},
	{FlowEthFilter{}, "ib_uverbs_flow_eth_filter", ""},
	{FlowSpecEth{}, "ib_uverbs_flow_spec_eth", ""},
	{FlowIPv4Filter{}, "ib_uverbs_flow_ipv4_filter", ""},
	{FlowSpecIPv4{}, "ib_uverbs_flow_spec_ipv4", ""},
	{FlowIPv6Filter{}, "ib_uverbs_flow_ipv6_filter", ""},
	{FlowSpecIPv6{}, "ib_uverbs_flow_spec_ipv6", ""},
	{FlowTCPUDPFilter{}, "ib_uverbs_flow_tcp_udp_filter", ""},
	{FlowSpecTCPUDP{}, "ib_uverbs_flow_spec_tcp_udp", ""},
	{FlowSpecActionTag{}, "ib_uverbs_flow_spec_action_tag", ""},
	{FlowSpecActionDrop{}, "ib_uverbs_flow_spec_action_drop", ""},
	{FlowSpecActionCount{}, "ib_uverbs_flow_spec_action_count", ""},

	{Mlx5AllocUcontextReqV2{}, "mlx5_ib_alloc_ucontext_req_v2", ""},
	{Mlx5AllocUcontextResp{}, "mlx5_ib_alloc_ucontext_resp", ""},
	{Mlx5AllocPDResp{}, "mlx5_ib_alloc_pd_resp", ""},
	{Mlx5TSOCaps{}, "mlx5_ib_tso_caps", ""},
	{Mlx5RSSCaps{}, "mlx5_ib_rss_caps", ""},
	{Mlx5CQECompCaps{}, "mlx5_ib_cqe_comp_caps", ""},
	{Mlx5PacketPacingCaps{}, "mlx5_packet_pacing_caps", ""},
	{Mlx5SWParsingCaps{}, "mlx5_ib_sw_parsing_caps", ""},
	{Mlx5StridingRQCaps{}, "mlx5_ib_striding_rq_caps", ""},
	{Mlx5QueryDeviceResp{}, "mlx5_ib_query_device_resp", ""},
	{Mlx5CreateCQReq{}, "mlx5_ib_create_cq", "uar_page_index"},
	{Mlx5CreateCQResp{}, "mlx5_ib_create_cq_resp", ""},
	{Mlx5CreateQPReq{}, "mlx5_ib_create_qp", "ece_options"},
	{Mlx5CreateQPResp{}, "mlx5_ib_create_qp_resp", ""},
	{Mlx5CreateQPRSSReq{}, "mlx5_ib_create_qp_rss", ""},
	{Mlx5BurstInfo{}, "mlx5_ib_burst_info", ""},
	{Mlx5ModifyQPReq{}, "mlx5_ib_modify_qp", ""},
	{Mlx5CreateWQReq{}, "mlx5_ib_create_wq", ""},
	{Mlx5CreateWQResp{}, "mlx5_ib_create_wq_resp", ""},
	{Mlx5ModifyWQReq{}, "mlx5_ib_modify_wq", ""},
	{Mlx5FlowCountersDesc{}, "mlx5_ib_flow_counters_desc", ""},
	{Mlx5FlowCountersData{}, "mlx5_ib_flow_counters_data", ""},
	{Mlx5CreateFlowReq{}, "mlx5_ib_create_flow", ""},
	{Mlx5ClockInfo{}, "mlx5_ib_clock_info", ""},
}

var uapiHeaders = []string{"rdma/rdma_user_ioctl_cmds.h", "rdma/ib_user_ioctl_cmds.h",
	"rdma/ib_user_ioctl_verbs.h",
	"rdma/ib_user_verbs.h", "rdma/mlx5-abi.h", "rdma/mlx5_user_ioctl_cmds.h"}

// field is one field to be compared.
type field struct {
	c            string
	offset, size uintptr
	newer        bool // absent from older headers
}

// fields lists the fields of a uAPI struct that have a C name.
func fields(v any) []field {
	var list []field
	t := reflect.TypeOf(v)
	for i := range t.NumField() {
		f := t.Field(i)
		name, opt, _ := strings.Cut(f.Tag.Get("c"), ",")
		if name == "-" || f.Name == "_" {
			continue
		}
		list = append(list, field{name, f.Offset, f.Type.Size(), opt == "newer"})
	}
	return list
}

// layout renders the layout of the Go structs in the format of the C program.
func layout() string {
	var b strings.Builder
	for _, s := range cStructs {
		fmt.Fprintf(&b, "%s %d\n", s.name, reflect.TypeOf(s.goType).Size())
		for _, f := range fields(s.goType) {
			fmt.Fprintf(&b, "%s.%s %d %d\n", s.name, f.c, f.offset, f.size)
		}
	}
	return b.String()
}

// layoutProgram writes the C program that prints layout's text. Fields that older headers lack are
// printed with their Go layout, and the size of their struct then ends before them.
func layoutProgram(has func(structName, field string) bool) string {
	b := programHead()
	for _, s := range cStructs {
		size := fmt.Sprintf("sizeof(struct %s)", s.name)
		if s.next != "" {
			size = fmt.Sprintf("offsetof(struct %s, %s)", s.name, s.next)
		}
		var lines []string
		for _, f := range fields(s.goType) {
			if f.newer && !has(s.name, f.c) {
				size += fmt.Sprintf(" + %d", f.size)
				lines = append(lines, fmt.Sprintf(`	printf("%s.%s %%zu %d\n", sizeof(struct %s));`,
					s.name, f.c, f.size, s.name))
				continue
			}
			lines = append(lines,
				fmt.Sprintf(`	printf("%s.%s %%zu %%zu\n", offsetof(struct %s, %s), sizeof(((struct %s *)0)->%s));`,
					s.name, f.c, s.name, f.c, s.name, f.c))
		}
		fmt.Fprintf(b, "\tprintf(\"%s %%zu\\n\", %s);\n%s\n", s.name, size,
			strings.Join(lines, "\n"))
	}
	b.WriteString("	return 0;\n}\n")
	return b.String()
}

func programHead() *strings.Builder {
	b := new(strings.Builder)
	b.WriteString("#include <stdio.h>\n#include <stddef.h>\n")
	for _, h := range uapiHeaders {
		fmt.Fprintf(b, "#include <%s>\n", h)
	}
	b.WriteString("int main(void) {\n")
	return b
}

// hasField asks the compiler whether its headers know a field.
func hasField(cc string) func(structName, field string) bool {
	return func(structName, field string) bool {
		b := programHead()
		fmt.Fprintf(b, "	return offsetof(struct %s, %s);\n}\n", structName, field)
		cmd := exec.Command(cc, "-x", "c", "-fsyntax-only", "-")
		cmd.Stdin = strings.NewReader(b.String())
		return cmd.Run() == nil
	}
}

// runC compiles and runs a program.
func runC(t *testing.T, cc, src string) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "abi")
	cmd := exec.Command(cc, "-x", "c", "-o", exe, "-")
	cmd.Stdin = strings.NewReader(src)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	out, err := exec.Command(exe).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// golden compares text with a file of testdata that -update wrote from the output of the C program.
func golden(t *testing.T, name, have string) {
	t.Helper()
	want, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	compareLines(t, "testdata/"+name, string(want), have)
}

func compareLines(t *testing.T, source, want, have string) {
	t.Helper()
	w, h := strings.Split(want, "\n"), strings.Split(have, "\n")
	for i := range max(len(w), len(h)) {
		var a, b string
		if i < len(w) {
			a = w[i]
		}
		if i < len(h) {
			b = h[i]
		}
		if a != b {
			t.Errorf("line %d: %s says %q, Go says %q", i+1, source, a, b)
		}
	}
}

func TestLayoutAgainstHeaders(t *testing.T) {
	cc := need.Header(t, uapiHeaders...)
	says := runC(t, cc, layoutProgram(hasField(cc)))
	compareLines(t, "the C compiler", says, layout())
	if *update {
		if err := os.WriteFile("testdata/layout.txt", []byte(says), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLayoutAgainstGolden(t *testing.T) { golden(t, "layout.txt", layout()) }

// TestEveryStructIsListed finds structs that are missing in the tables of the two tests above.
func TestEveryStructIsListed(t *testing.T) {
	listed := map[string]bool{}
	for _, s := range cStructs {
		listed[reflect.TypeOf(s.goType).Name()] = true
	}
	for _, file := range []string{"abi_core.go", "abi_core_queue.go", "abi_mlx5.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, s := range g.Specs {
				if name := s.(*ast.TypeSpec).Name.Name; !listed[name] {
					t.Errorf("%s: %s is not compared with its C struct", file, name)
				}
			}
		}
	}
}

// TestNoImplicitPadding guards what PutStruct and GetStruct rely on.
func TestNoImplicitPadding(t *testing.T) {
	for _, s := range cStructs {
		if have, want := SizeOf(s.goType), int(reflect.TypeOf(s.goType).Size()); have != want {
			t.Errorf("%T: its fields have %d bytes, the struct %d", s.goType, have, want)
		}
	}
}

// TestStructBytes writes and reads every struct with bytes that are all different.
func TestStructBytes(t *testing.T) {
	for _, s := range cStructs {
		v := reflect.New(reflect.TypeOf(s.goType))
		n := SizeOf(s.goType)
		want := make([]byte, n)
		for i := range want {
			want[i] = byte(i + 1)
		}
		GetStruct(want, v.Interface())
		have := bytes.Repeat([]byte{0xa5}, n+8)
		if got := PutStruct(have, v.Interface()); got != n {
			t.Errorf("%s: wrote %d bytes of %d", s.name, got, n)
		}
		if !bytes.Equal(have[:n], want) || !bytes.Equal(have[n:], bytes.Repeat([]byte{0xa5}, 8)) {
			t.Errorf("%s: % x became % x", s.name, want, have)
		}
	}
}

func TestGetStructLengths(t *testing.T) {
	var r RegMRResp
	GetStruct([]byte{1, 0, 0, 0, 2, 0}, &r)
	if r.MRHandle != 1 || r.LKey != 2 || r.RKey != 0 {
		t.Errorf("short source: %+v", r)
	}
	GetStruct([]byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0xff, 0xff}, &r)
	if r.RKey != 3 {
		t.Errorf("long source: %+v", r)
	}
	defer func() {
		if recover() == nil {
			t.Error("no panic for a short destination")
		}
	}()
	PutStruct(make([]byte, 3), r)
}
