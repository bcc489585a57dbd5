package mlx5

import (
	_ "embed"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// The vendor's header is the judge of this package. A C program made from the
// lists below prints, by mlx5dv.h of Debian's libibverbs-dev: the value of each
// constant, where each field lies, and what each inline encoder writes. Its
// output is kept in testdata, so that the Go side is judged without a compiler.

var update = flag.Bool("update", false, "rewrite testdata/mlx5dv.golden from the installed header")

//go:embed testdata/mlx5dv.golden
var goldenOracle string

const goldenFile = "testdata/mlx5dv.golden"

// cConstants pairs the header's constants with ours.
var cConstants = []struct {
	c    string
	want uint64
}{
	{"MLX5_RCV_DBR * 4", RecordRecv},
	{"MLX5_SND_DBR * 4", RecordSend},
	{"MLX5_CQ_DOORBELL", UARArm},
	{"MLX5_CQ_DB_REQ_NOT_SOL", 1 << 24},
	{"MLX5_OPCODE_NOP", uint64(OpNOP)},
	{"MLX5_OPCODE_SEND_INVAL", uint64(OpSendInv)},
	{"MLX5_OPCODE_RDMA_WRITE", uint64(OpRDMAWrite)},
	{"MLX5_OPCODE_RDMA_WRITE_IMM", uint64(OpRDMAWriteImm)},
	{"MLX5_OPCODE_SEND", uint64(OpSend)},
	{"MLX5_OPCODE_SEND_IMM", uint64(OpSendImm)},
	{"MLX5_OPCODE_TSO", uint64(OpLSO)},
	{"MLX5_OPCODE_RDMA_READ", uint64(OpRDMARead)},
	{"MLX5_OPCODE_ATOMIC_CS", uint64(OpAtomicCS)},
	{"MLX5_OPCODE_ATOMIC_FA", uint64(OpAtomicFA)},
	{"MLX5_OPCODE_ATOMIC_MASKED_CS", uint64(OpAtomicMaskedCS)},
	{"MLX5_OPCODE_ATOMIC_MASKED_FA", uint64(OpAtomicMaskedFA)},
	{"MLX5_OPCODE_CONFIG_CMD", uint64(OpConfig)},
	{"MLX5_OPCODE_UMR", uint64(OpUMR)},
	{"MLX5_OPCODE_TAG_MATCHING", uint64(OpTagMatching)},
	{"MLX5_OPCODE_FLOW_TBL_ACCESS", uint64(OpFlowTblAccess)},
	{"MLX5_OPCODE_MMO", uint64(OpMMO)},
	{"MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR", uint64(SynLocalLength)},
	{"MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR", uint64(SynLocalQPOp)},
	{"MLX5_CQE_SYNDROME_LOCAL_PROT_ERR", uint64(SynLocalProtection)},
	{"MLX5_CQE_SYNDROME_WR_FLUSH_ERR", uint64(SynFlushed)},
	{"MLX5_CQE_SYNDROME_MW_BIND_ERR", uint64(SynMWBind)},
	{"MLX5_CQE_SYNDROME_BAD_RESP_ERR", uint64(SynBadResponse)},
	{"MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR", uint64(SynLocalAccess)},
	{"MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR", uint64(SynRemoteInvalid)},
	{"MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR", uint64(SynRemoteAccess)},
	{"MLX5_CQE_SYNDROME_REMOTE_OP_ERR", uint64(SynRemoteOp)},
	{"MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR", uint64(SynRetryExceeded)},
	{"MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR", uint64(SynRNRExceeded)},
	{"MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR", uint64(SynRemoteAborted)},
	{"MLX5_CQE_L2_OK << 8", HdrL2OK},
	{"MLX5_CQE_L3_OK << 8", HdrL3OK},
	{"MLX5_CQE_L4_OK << 8", HdrL4OK},
	{"MLX5_CQE_L3_HDR_TYPE_NONE", L3Other},
	{"MLX5_CQE_L3_HDR_TYPE_IPV6", L3IPv6},
	{"MLX5_CQE_L3_HDR_TYPE_IPV4", L3IPv4},
	{"MLX5_CQE_REQ", uint64(CQEReq)},
	{"MLX5_CQE_RESP_WR_IMM", uint64(CQERecvImmRDMA)},
	{"MLX5_CQE_RESP_SEND", uint64(CQERecv)},
	{"MLX5_CQE_RESP_SEND_IMM", uint64(CQERecvImm)},
	{"MLX5_CQE_RESP_SEND_INV", uint64(CQERecvInv)},
	{"MLX5_CQE_RESIZE_CQ", uint64(CQEResize)},
	{"MLX5_CQE_NO_PACKET", uint64(CQENoPacket)},
	{"MLX5_CQE_SIG_ERR", uint64(CQESigErr)},
	{"MLX5_CQE_REQ_ERR", uint64(CQEReqErr)},
	{"MLX5_CQE_RESP_ERR", uint64(CQERecvErr)},
	{"MLX5_CQE_INVALID", uint64(CQEInvalid)},
	{"MLX5_INVALID_LKEY", EndOfListLKey},
	{"MLX5_WQE_CTRL_CQ_UPDATE", CEAlways},
	{"MLX5_WQE_CTRL_SOLICITED", SESolicited},
	{"MLX5_SEND_WQE_BB", BB},
	{"MLX5_INLINE_SEG", inlineFlag},
	{"MLX5_ETH_WQE_L3_CSUM", CsumL3},
	{"MLX5_ETH_WQE_L4_CSUM", CsumL4},
	{"sizeof(struct mlx5_cqe64)", CQESize},
	{"sizeof(struct mlx5_err_cqe)", CQESize},
	{"sizeof(struct mlx5_wqe_ctrl_seg)", CtrlSegSize},
	{"sizeof(struct mlx5_wqe_data_seg)", DataSegSize},
	{"sizeof(struct mlx5_wqe_inl_data_seg)", InlineHeaderSize},
	{"sizeof(struct mlx5_wqe_srq_next_seg)", DSSize},
	{"offsetof(struct mlx5_wqe_eth_seg, inline_hdr)", EthSegSize},
	{"offsetof(struct mlx5_wqe_eth_seg, inline_hdr_start)", InlineOffset},
}

// cMembers pairs members of the header's structs with the fields inside them.
// What the header leaves anonymous (the hash, the checksum, the LRO fields) is
// not here: other drivers are the source for that.
var cMembers = []struct {
	c, member string
	fields    []Field
}{
	{"mlx5_wqe_ctrl_seg", "opmod_idx_opcode", []Field{CtrlOpMod, CtrlIndex, CtrlOpcode}},
	{"mlx5_wqe_ctrl_seg", "qpn_ds", []Field{CtrlQPN, CtrlDS}},
	{"mlx5_wqe_ctrl_seg", "signature", []Field{CtrlSignature}},
	{"mlx5_wqe_ctrl_seg", "dci_stream_channel_id", []Field{CtrlStream}},
	{"mlx5_wqe_ctrl_seg", "fm_ce_se", []Field{CtrlFM, CtrlCE, CtrlSE}},
	{"mlx5_wqe_ctrl_seg", "imm", []Field{CtrlImm}},
	{"mlx5_wqe_eth_seg", "rsvd0", []Field{EthSWPOuterL4, EthSWPOuterL3,
		EthSWPInnerL4, EthSWPInnerL3}},
	{"mlx5_wqe_eth_seg", "cs_flags", []Field{EthL4Csum, EthL3Csum, EthL4InnerCsum, EthL3InnerCsum}},
	{"mlx5_wqe_eth_seg", "rsvd1", []Field{EthSWPFlags}},
	{"mlx5_wqe_eth_seg", "mss", []Field{EthMSS}},
	{"mlx5_wqe_eth_seg", "rsvd2", []Field{EthMetadata}},
	{"mlx5_wqe_eth_seg", "inline_hdr_sz",
		[]Field{EthInsert, EthTrailer, EthInlineLen, EthInsertSVLAN}},
	{"mlx5_wqe_eth_seg", "inline_hdr_start", []Field{EthTCI}},
	{"mlx5_wqe_data_seg", "byte_count", []Field{DataInline, DataByteCount}},
	{"mlx5_wqe_data_seg", "lkey", []Field{DataLKey}},
	{"mlx5_wqe_data_seg", "addr", []Field{DataAddr}},
	{"mlx5_wqe_srq_next_seg", "next_wqe_index", []Field{NextIndex}},
	{"mlx5_wqe_srq_next_seg", "signature", []Field{NextSignature}},
	{"mlx5_cqe64", "wqe_id", []Field{CQEWQEID}},
	{"mlx5_cqe64", "ml_path", []Field{CQEMLPath}},
	{"mlx5_cqe64", "slid", []Field{CQESLID}},
	{"mlx5_cqe64", "flags_rqpn", []Field{CQEFlagsRQPN}},
	{"mlx5_cqe64", "hds_ip_ext", []Field{CQEIPExtInfo, CQEL4OK, CQEL3OK, CQEL2OK}},
	{"mlx5_cqe64", "l4_hdr_type_etc", []Field{CQEIPFragment, CQEL4Type, CQEL3Type,
		CQEIPExt, CQEVLANStripped}},
	{"mlx5_cqe64", "vlan_info", []Field{CQEVLAN}},
	{"mlx5_cqe64", "srqn_uidx", []Field{CQELROSegments, CQEUIdx}},
	{"mlx5_cqe64", "imm_inval_pkey", []Field{CQEMetadata}},
	{"mlx5_cqe64", "byte_cnt", []Field{CQEByteCount, CQEFiller, CQEStrides, CQEStridingBytes}},
	{"mlx5_cqe64", "timestamp", []Field{CQETimestamp}},
	{"mlx5_cqe64", "sop_drop_qpn", []Field{CQEDrops, CQEFlowTag, CQESendOpcode, CQEQPN}},
	{"mlx5_cqe64", "wqe_counter", []Field{CQEWQECounter}},
	{"mlx5_cqe64", "signature", []Field{CQESignature}},
	{"mlx5_cqe64", "op_own", []Field{CQEKind, CQEFormat, CQESolicited, CQEOwner}},
	{"mlx5_err_cqe", "srqn", []Field{CQEUIdx}},
	{"mlx5_err_cqe", "vendor_err_synd", []Field{CQEVendorSyndrome}},
	{"mlx5_err_cqe", "syndrome", []Field{CQESyndrome}},
	{"mlx5_err_cqe", "s_wqe_opcode_qpn", []Field{CQESendOpcode, CQEQPN}},
	{"mlx5_err_cqe", "wqe_counter", []Field{CQEWQECounter}},
	{"mlx5_err_cqe", "signature", []Field{CQESignature}},
	{"mlx5_err_cqe", "op_own", []Field{CQEKind, CQEFormat, CQESolicited, CQEOwner}},
}

// cEncoders pairs calls of the header's inline encoders, on a buffer b, with
// ours. Bytes the vendor does not write, we write as zero.
var cEncoders = []struct {
	c    string
	size int
	put  func(b []byte)
}{
	{"mlx5dv_set_ctrl_seg((void *)b, 0x1234, MLX5_OPCODE_SEND, 0, 0xabcdef, " +
		"MLX5_WQE_CTRL_CQ_UPDATE, 4, 0, 0)",
		CtrlSegSize,
		func(b []byte) { PutCtrl(b, OpSend, 0, 0x1234, 0xabcdef, 4, CEAlways) }},
	{"mlx5dv_set_ctrl_seg((void *)b, 0xffff, MLX5_OPCODE_TSO, 1, 0xffffff, " +
		"MLX5_WQE_CTRL_SOLICITED, 63, 0, 0)",
		CtrlSegSize,
		func(b []byte) { PutCtrl(b, OpLSO, OpModLegacyMPW, 0xffff, 0xffffff, 63, SESolicited) }},
	{"mlx5dv_set_eth_seg((void *)b, MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM, 1460, 18, " +
		"(uint8_t *)hdr)", 32,
		func(b []byte) {
			PutEth(b, Eth{CsumFlags: CsumL3 | CsumL4, MSS: 1460, InlineLen: 18})
			PutInlineHeader(b, []byte(oracleHeader))
		}},
	{"mlx5dv_set_data_seg((void *)b, 1496, 0x11223344, 0x7f0011223356ull)", DataSegSize,
		func(b []byte) { PutData(b, 1496, 0x11223344, 0x7f0011223356) }},
}

const oracleHeader = "abcdefghijklmnopqr"

// oracleProgram is the C program.
func oracleProgram() string {
	var s strings.Builder
	s.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include <string.h>\n#include " +
		"<infiniband/mlx5dv.h>\n" +
		"static char hdr[] = \"" + oracleHeader + "\";\n" +
		"static void show(const char *what, const unsigned char *b, int n)\n" +
		"{ printf(\"%s =\", what); for (int i = 0; i < n; i++) printf(\" %02x\", b[i]); " +
		"printf(\"\\n\"); }\n" +
		"int main(void) {\nunsigned char b[64] __attribute__((aligned(64)));\n")
	for _, c := range cConstants {
		fmt.Fprintf(&s, "printf(\"%%s = %%llu\\n\", %q, (unsigned long long)(unsigned)(%s));\n",
			c.c, c.c)
	}
	for _, m := range cMembers {
		fmt.Fprintf(&s,
			"printf(\"%s.%s = %%zu %%zu\\n\", offsetof(struct %s, %s), sizeof(((struct %s "+
				"*)0)->%s));\n",
			m.c, m.member, m.c, m.member, m.c, m.member)
	}
	for _, e := range cEncoders {
		for _, poison := range []int{0xa5, 0x5a} {
			fmt.Fprintf(&s, "memset(b, %#x, sizeof b); %s; show(%q, b, %d);\n", poison, e.c,
				fmt.Sprintf("%#x %s", poison, e.c), e.size)
		}
	}
	return s.String() + "return 0;\n}\n"
}

// TestGoldenIsWhatTheHeaderSays compiles the program against the installed
// header and compares its output with the copy in testdata.
func TestGoldenIsWhatTheHeaderSays(t *testing.T) {
	cc := need.Header(t, "infiniband/mlx5dv.h")
	dir := t.TempDir()
	src, exe := filepath.Join(dir, "oracle.c"), filepath.Join(dir, "oracle")
	if err := os.WriteFile(src, []byte(oracleProgram()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-std=gnu11", "-o", exe, src).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(exe).Output()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(goldenFile, out, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(out) != goldenOracle {
		t.Errorf("%s differs from what the header says (go test -update rewrites it):\n%s",
			goldenFile, firstDifference(string(out), goldenOracle))
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return "header: " + g[i] + "\ngolden: " + w[i]
		}
	}
	return fmt.Sprintf("%d and %d lines", len(g), len(w))
}

// oracle is one answer of the header.
func oracle(t *testing.T, question string) string {
	t.Helper()
	_, rest, ok := strings.Cut("\n"+goldenOracle, "\n"+question+" = ")
	if !ok {
		t.Fatalf("%s has no %q (go test -update rewrites it)", goldenFile, question)
	}
	answer, _, _ := strings.Cut(rest, "\n")
	return answer
}

func TestConstantsAreTheVendors(t *testing.T) {
	for _, c := range cConstants {
		if got := strconv.FormatUint(c.want, 10); got != oracle(t, c.c) {
			t.Errorf("%s is %s, here %s", c.c, oracle(t, c.c), got)
		}
	}
}

func TestFieldsAreTheVendors(t *testing.T) {
	for _, m := range cMembers {
		var off, size int
		if _, err := fmt.Sscan(oracle(t, m.c+"."+m.member), &off, &size); err != nil {
			t.Fatal(err)
		}
		for _, f := range m.fields {
			// The bytes that have bits [Hi:Lo] of the field's word.
			first, last := f.Byte+f.Size()-1-int(f.Hi)/8, f.Byte+f.Size()-1-int(f.Lo)/8
			if first < off || last >= off+size {
				t.Errorf("%s is in bytes %d to %d, %s.%s in %d to %d", f.Name, first, last, m.c,
					m.member, off, off+size-1)
			}
		}
	}
}

func TestEncodersAreTheVendors(t *testing.T) {
	for _, e := range cEncoders {
		a := unhex(t, oracle(t, "0xa5 "+e.c))
		b := unhex(t, oracle(t, "0x5a "+e.c))
		want := make([]byte, e.size)
		for i := range want {
			if a[i] == b[i] { // the vendor wrote it
				want[i] = a[i]
			}
		}
		got := poisoned(e.size)
		e.put(got)
		if same(t, got, want); t.Failed() {
			t.Fatal(e.c)
		}
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
