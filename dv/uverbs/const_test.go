package uverbs

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// cConst pairs a number with its C expression.
type cConst struct {
	c     string
	value uint64
}

var uapiConsts = []cConst{
	{"RDMA_VERBS_IOCTL", IoctlCode},
	{"IB_USER_VERBS_ABI_VERSION", ABIVersion},
	{"RDMA_DRIVER_MLX5", uint64(DriverMLX5)}, {"RDMA_DRIVER_MLX4", uint64(DriverMLX4)},
	{"RDMA_DRIVER_RXE", uint64(DriverRXE)},
	{"RDMA_DRIVER_EFA", uint64(DriverEFA)}, {"RDMA_DRIVER_SIW", uint64(DriverSIW)},
	{"UVERBS_ATTR_F_MANDATORY", uint64(AttrMandatory)},
	{"UVERBS_ATTR_F_VALID_OUTPUT", uint64(AttrValidOutput)},

	{"UVERBS_OBJECT_DEVICE", uint64(ObjectDevice)}, {"UVERBS_OBJECT_PD", uint64(ObjectPD)},
	{"UVERBS_OBJECT_COMP_CHANNEL", uint64(ObjectCompChannel)},
	{"UVERBS_OBJECT_CQ", uint64(ObjectCQ)}, {"UVERBS_OBJECT_QP", uint64(ObjectQP)},
	{"UVERBS_OBJECT_MR", uint64(ObjectMR)},
	{"UVERBS_OBJECT_FLOW", uint64(ObjectFlow)}, {"UVERBS_OBJECT_RWQ_IND_TBL",
		uint64(ObjectRWQIndTable)}, {"UVERBS_OBJECT_WQ", uint64(ObjectWQ)},
	{"UVERBS_OBJECT_COUNTERS", uint64(ObjectCounters)},
	{"UVERBS_OBJECT_ASYNC_EVENT", uint64(ObjectAsyncEvent)},

	{"UVERBS_METHOD_INVOKE_WRITE", uint64(MethodInvokeWrite)},
	{"UVERBS_METHOD_QUERY_PORT", uint64(MethodQueryPort)},
	{"UVERBS_METHOD_GET_CONTEXT", uint64(MethodGetContext)},
	{"UVERBS_METHOD_QUERY_CONTEXT", uint64(MethodQueryContext)},
	{"UVERBS_METHOD_ASYNC_EVENT_ALLOC", uint64(MethodAsyncEventAlloc)},
	{"UVERBS_METHOD_COUNTERS_CREATE", uint64(MethodCountersCreate)},
	{"UVERBS_METHOD_COUNTERS_DESTROY", uint64(MethodCountersDestroy)},
	{"UVERBS_METHOD_COUNTERS_READ", uint64(MethodCountersRead)},

	{"UVERBS_ATTR_CORE_IN", uint64(AttrCoreIn)}, {"UVERBS_ATTR_CORE_OUT", uint64(AttrCoreOut)},
	{"UVERBS_ATTR_WRITE_CMD", uint64(AttrWriteCmd)},
	{"UVERBS_ATTR_UHW_IN", uint64(AttrUHWIn)}, {"UVERBS_ATTR_UHW_OUT", uint64(AttrUHWOut)},
	{"UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS", uint64(AttrNumCompVectors)},
	{"UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT", uint64(AttrCoreSupport)},
	{"UVERBS_ATTR_QUERY_PORT_PORT_NUM", uint64(AttrQueryPortNum)},
	{"UVERBS_ATTR_QUERY_PORT_RESP", uint64(AttrQueryPortResp)},
	{"UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE", uint64(AttrAsyncEventFD)},
	{"UVERBS_ATTR_CREATE_COUNTERS_HANDLE", uint64(AttrCountersHandle)},
	{"UVERBS_ATTR_READ_COUNTERS_BUFF", uint64(AttrCountersBuffer)},
	{"UVERBS_ATTR_READ_COUNTERS_FLAGS", uint64(AttrCountersFlags)},
	{"IB_UVERBS_READ_COUNTERS_PREFER_CACHED", uint64(CountersPreferCached)},
	{"IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS", CoreSupportOptionalMRAccess},

	{"IB_USER_VERBS_CMD_GET_CONTEXT", uint64(CmdGetContext)},
	{"IB_USER_VERBS_CMD_QUERY_DEVICE", uint64(CmdQueryDevice)},
	{"IB_USER_VERBS_CMD_QUERY_PORT", uint64(CmdQueryPort)},
	{"IB_USER_VERBS_CMD_ALLOC_PD", uint64(CmdAllocPD)},
	{"IB_USER_VERBS_CMD_DEALLOC_PD", uint64(CmdDeallocPD)},
	{"IB_USER_VERBS_CMD_REG_MR", uint64(CmdRegMR)},
	{"IB_USER_VERBS_CMD_DEREG_MR", uint64(CmdDeregMR)}, {"IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL",
		uint64(CmdCreateCompChannel)},
	{"IB_USER_VERBS_CMD_CREATE_CQ", uint64(CmdCreateCQ)},
	{"IB_USER_VERBS_CMD_RESIZE_CQ", uint64(CmdResizeCQ)},
	{"IB_USER_VERBS_CMD_DESTROY_CQ", uint64(CmdDestroyCQ)},
	{"IB_USER_VERBS_CMD_CREATE_QP", uint64(CmdCreateQP)},
	{"IB_USER_VERBS_CMD_QUERY_QP", uint64(CmdQueryQP)},
	{"IB_USER_VERBS_CMD_MODIFY_QP", uint64(CmdModifyQP)},
	{"IB_USER_VERBS_CMD_DESTROY_QP", uint64(CmdDestroyQP)},
	{"IB_USER_VERBS_CMD_FLAG_EXTENDED", uint64(CmdExtended)},
	{"IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_QUERY_DEVICE",
		uint64(ExCmdQueryDevice)},
	{"IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_CREATE_CQ", uint64(ExCmdCreateCQ)},
	{"IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_CREATE_QP", uint64(ExCmdCreateQP)},
	{"IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_MODIFY_QP", uint64(ExCmdModifyQP)},
	{"IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_CREATE_FLOW", uint64(ExCmdCreateFlow)},
	{"IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_DESTROY_FLOW",
		uint64(ExCmdDestroyFlow)},
	{"IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_CREATE_WQ", uint64(ExCmdCreateWQ)},
	{"IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_MODIFY_WQ", uint64(ExCmdModifyWQ)},
	{"IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_DESTROY_WQ", uint64(ExCmdDestroyWQ)},
	{"IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL",
		uint64(ExCmdCreateRWQIndTbl)},
	{"IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL",
		uint64(ExCmdDestroyRWQIndTbl)},
	{"IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_MODIFY_CQ", uint64(ExCmdModifyCQ)},

	{"IB_UVERBS_QPT_RAW_PACKET", uint64(QPTypeRawPacket)}, {"IB_UVERBS_CREATE_QP_MASK_IND_TABLE",
		uint64(CreateQPMaskIndTable)},
	{"IB_UVERBS_QP_CREATE_SCATTER_FCS", uint64(QPCreateScatterFCS)},
	{"IB_UVERBS_QP_CREATE_CVLAN_STRIPPING", uint64(QPCreateCVLANStripping)},
	{"IB_UVERBS_QP_CREATE_PCI_WRITE_END_PADDING", uint64(QPCreatePCIWriteEndPadding)},
	{"IB_UVERBS_WQT_RQ", uint64(WQTypeRQ)}, {"IB_UVERBS_WQ_FLAGS_CVLAN_STRIPPING",
		uint64(WQFlagCVLANStripping)},
	{"IB_UVERBS_WQ_FLAGS_SCATTER_FCS", uint64(WQFlagScatterFCS)},
	{"IB_UVERBS_WQ_FLAGS_DELAY_DROP", uint64(WQFlagDelayDrop)},
	{"IB_UVERBS_WQ_FLAGS_PCI_WRITE_END_PADDING", uint64(WQFlagPCIWriteEndPadding)},
	{"IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE", MaxLogIndTblSize},
	{"IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION", uint64(CQFlagTimestampCompletion)},
	{"IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN", uint64(CQFlagIgnoreOverrun)},
	{"IB_UVERBS_ACCESS_LOCAL_WRITE", uint64(AccessLocalWrite)},
	{"IB_UVERBS_ACCESS_ON_DEMAND", uint64(AccessOnDemand)},
	{"IB_UVERBS_ACCESS_HUGETLB", uint64(AccessHugeTLB)}, {"IB_UVERBS_ACCESS_RELAXED_ORDERING",
		uint64(AccessRelaxedOrdering)},
	{"IB_UVERBS_ACCESS_OPTIONAL_RANGE", uint64(AccessOptionalMask)},
	{"IB_UVERBS_DEVICE_RAW_IP_CSUM", DevCapRawIPCsum}, {"IB_UVERBS_DEVICE_MANAGED_FLOW_STEERING",
		DevCapManagedFlowSteering},
	{"IB_UVERBS_DEVICE_RAW_SCATTER_FCS", DevCapRawScatterFCS},
	{"IB_UVERBS_DEVICE_PCI_WRITE_END_PADDING", DevCapPCIWriteEndPadding},
	{"IB_UVERBS_RAW_PACKET_CAP_CVLAN_STRIPPING", uint64(RawPacketCapCVLANStripping)},
	{"IB_UVERBS_RAW_PACKET_CAP_SCATTER_FCS", uint64(RawPacketCapScatterFCS)},
	{"IB_UVERBS_RAW_PACKET_CAP_IP_CSUM", uint64(RawPacketCapIPCsum)},
	{"IB_UVERBS_RAW_PACKET_CAP_DELAY_DROP", uint64(RawPacketCapDelayDrop)},

	{"MLX5_LIB_CAP_4K_UAR", Mlx5LibCap4KUAR}, {"MLX5_LIB_CAP_DYN_UAR", Mlx5LibCapDynUAR},
	{"MLX5_IB_ALLOC_UCTX_DEVX", uint64(Mlx5AllocUctxDEVX)},
	{"MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET", uint64(Mlx5UcontextCoreClockOffset)},
	{"MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY", uint64(Mlx5UcontextDumpFillMkey)},
	{"MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_ECE", uint64(Mlx5UcontextECE)},
	{"MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_SQD2RTS", uint64(Mlx5UcontextSQD2RTS)},
	{"MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS", uint64(Mlx5UcontextRealTimeTS)},
	{"MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_MKEY_UPDATE_TAG", uint64(Mlx5UcontextMkeyUpdateTag)},
	{"MLX5_USER_INLINE_MODE_NA", uint64(Mlx5InlineUnknown)}, {"MLX5_USER_INLINE_MODE_NONE",
		uint64(Mlx5InlineNone)}, {"MLX5_USER_INLINE_MODE_L2", uint64(Mlx5InlineL2)},
	{"MLX5_USER_INLINE_MODE_IP", uint64(Mlx5InlineIP)},
	{"MLX5_USER_INLINE_MODE_TCP_UDP", uint64(Mlx5InlineTCPUDP)},
	{"MLX5_RX_HASH_FUNC_TOEPLITZ", uint64(Mlx5HashToeplitz)}, {"MLX5_IB_ALLOW_MPW",
		uint64(Mlx5AllowMPW)}, {"MLX5_IB_SUPPORT_EMPW", uint64(Mlx5SupportEMPW)},
	{"MLX5_IB_SW_PARSING", uint64(Mlx5SWParsing)}, {"MLX5_IB_SW_PARSING_CSUM",
		uint64(Mlx5SWParsingCsum)}, {"MLX5_IB_SW_PARSING_LSO", uint64(Mlx5SWParsingLSO)},
	{"MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_COMP", uint64(Mlx5CQE128BComp)},
	{"MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD", uint64(Mlx5CQE128BPad)},
	{"MLX5_IB_PP_SUPPORT_BURST", uint64(Mlx5PacketPacingBurst)},
	{"MLX5_IB_CQE_RES_FORMAT_HASH", uint64(Mlx5CQEFormatHash)},
	{"MLX5_IB_CQE_RES_FORMAT_CSUM", uint64(Mlx5CQEFormatCsum)},
	{"MLX5_IB_CQE_RES_FORMAT_CSUM_STRIDX", uint64(Mlx5CQEFormatCsumStrIdx)},
	{"MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD", uint64(Mlx5CreateCQ128BPad)},
	{"MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX", uint64(Mlx5CreateCQUARPageIndex)},
	{"MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS", uint64(Mlx5CreateCQRealTimeTS)},
	{"MLX5_QP_FLAG_SIGNATURE", uint64(Mlx5QPFlagSignature)},
	{"MLX5_QP_FLAG_SCATTER_CQE", uint64(Mlx5QPFlagScatterCQE)},
	{"MLX5_QP_FLAG_TUNNEL_OFFLOADS", uint64(Mlx5QPFlagTunnelOffloads)},
	{"MLX5_QP_FLAG_BFREG_INDEX", uint64(Mlx5QPFlagBfregIndex)},
	{"MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_UC", uint64(Mlx5QPFlagAllowSelfLBUC)},
	{"MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_MC", uint64(Mlx5QPFlagAllowSelfLBMC)},
	{"MLX5_QP_FLAG_UAR_PAGE_INDEX", uint64(Mlx5QPFlagUARPageIndex)},
	{"MLX5_WQ_FLAG_SIGNATURE", uint64(Mlx5WQFlagSignature)},
	{"MLX5_IB_CREATE_WQ_STRIDING_RQ", uint64(Mlx5CreateWQMaskStridingRQ)},
	{"MLX5_RX_HASH_SRC_IPV4", HashSrcIPv4}, {"MLX5_RX_HASH_DST_IPV4", HashDstIPv4},
	{"MLX5_RX_HASH_SRC_IPV6", HashSrcIPv6}, {"MLX5_RX_HASH_DST_IPV6", HashDstIPv6},
	{"MLX5_RX_HASH_SRC_PORT_TCP", HashSrcTCP}, {"MLX5_RX_HASH_DST_PORT_TCP", HashDstTCP},
	{"MLX5_RX_HASH_SRC_PORT_UDP", HashSrcUDP},
	{"MLX5_RX_HASH_DST_PORT_UDP", HashDstUDP}, {"MLX5_RX_HASH_IPSEC_SPI", HashIPsecSPI},
	{"MLX5_RX_HASH_INNER", HashInner},
	{"MLX5_IB_MMAP_REGULAR_PAGE", MmapRegularPage}, {"MLX5_IB_MMAP_GET_CONTIGUOUS_PAGES",
		MmapGetContiguousPages}, {"MLX5_IB_MMAP_WC_PAGE", MmapWCPage},
	{"MLX5_IB_MMAP_NC_PAGE", MmapNCPage}, {"MLX5_IB_MMAP_CORE_CLOCK", MmapCoreClock},
	{"MLX5_IB_MMAP_ALLOC_WC", MmapAllocWC},
	{"MLX5_IB_MMAP_CLOCK_INFO", MmapClockInfo}, {"MLX5_IB_MMAP_DEVICE_MEM", MmapDeviceMem},
}

// verbsConsts have no name in the uAPI headers; libibverbs shares the kernel's numbers.
var verbsConsts = []cConst{
	{"IBV_QP_STATE", uint64(QPAttrState)}, {"IBV_QP_CUR_STATE", uint64(QPAttrCurState)},
	{"IBV_QP_PORT", uint64(QPAttrPort)}, {"IBV_QP_RATE_LIMIT", uint64(QPAttrRateLimit)},
	{"IBV_QPS_RESET", uint64(QPReset)}, {"IBV_QPS_INIT", uint64(QPInit)},
	{"IBV_QPS_RTR", uint64(QPRTR)}, {"IBV_QPS_RTS", uint64(QPRTS)},
	{"IBV_QPS_SQD", uint64(QPSQD)}, {"IBV_QPS_SQE", uint64(QPSQE)}, {"IBV_QPS_ERR", uint64(QPErr)},
	{"IBV_WQ_ATTR_STATE", uint64(WQAttrState)}, {"IBV_WQ_ATTR_CURR_STATE", uint64(WQAttrCurState)},
	{"IBV_WQ_ATTR_FLAGS", uint64(WQAttrFlags)},
	{"IBV_WQS_RESET", uint64(WQReset)}, {"IBV_WQS_RDY", uint64(WQReady)},
	{"IBV_WQS_ERR", uint64(WQErr)},
	{"IBV_CQ_ATTR_MODERATE", uint64(CQAttrModerate)},
	{"IBV_PORT_DOWN", uint64(PortStateDown)}, {"IBV_PORT_INIT", uint64(PortStateInit)},
	{"IBV_PORT_ARMED", uint64(PortStateArmed)}, {"IBV_PORT_ACTIVE", uint64(PortStateActive)},
	{"IBV_LINK_LAYER_UNSPECIFIED", uint64(LinkLayerUnspecified)}, {"IBV_LINK_LAYER_INFINIBAND",
		uint64(LinkLayerInfiniBand)}, {"IBV_LINK_LAYER_ETHERNET", uint64(LinkLayerEthernet)},
	{"IBV_FLOW_ATTR_NORMAL", uint64(FlowNormal)}, {"IBV_FLOW_ATTR_ALL_DEFAULT",
		uint64(FlowAllDefault)}, {"IBV_FLOW_ATTR_MC_DEFAULT", uint64(FlowMCDefault)},
	{"IBV_FLOW_ATTR_SNIFFER", uint64(FlowSniffer)}, {"IBV_FLOW_ATTR_FLAGS_DONT_TRAP",
		uint64(FlowFlagDontTrap)}, {"IBV_FLOW_ATTR_FLAGS_EGRESS", uint64(FlowFlagEgress)},
	{"IBV_FLOW_SPEC_ETH", uint64(FlowSpecTypeEth)}, {"IBV_FLOW_SPEC_IPV4",
		uint64(FlowSpecTypeIPv4)}, {"IBV_FLOW_SPEC_IPV6", uint64(FlowSpecTypeIPv6)},
	{"IBV_FLOW_SPEC_TCP", uint64(FlowSpecTypeTCP)}, {"IBV_FLOW_SPEC_UDP", uint64(FlowSpecTypeUDP)},
	{"IBV_FLOW_SPEC_VXLAN_TUNNEL", uint64(FlowSpecTypeVXLAN)},
	{"IBV_FLOW_SPEC_GRE", uint64(FlowSpecTypeGRE)}, {"IBV_FLOW_SPEC_INNER",
		uint64(FlowSpecTypeInner)}, {"IBV_FLOW_SPEC_ACTION_TAG", uint64(FlowSpecTypeActionTag)},
	{"IBV_FLOW_SPEC_ACTION_DROP", uint64(FlowSpecTypeActionDrop)},
	{"IBV_FLOW_SPEC_ACTION_COUNT", uint64(FlowSpecTypeActionCount)},
	{"IBV_COUNTER_PACKETS", uint64(FlowCounterPackets)},
	{"IBV_COUNTER_BYTES", uint64(FlowCounterBytes)},
	{"IBV_EVENT_CQ_ERR", uint64(EventCQError)}, {"IBV_EVENT_QP_FATAL", uint64(EventQPFatal)},
	{"IBV_EVENT_QP_REQ_ERR", uint64(EventQPReqError)},
	{"IBV_EVENT_QP_ACCESS_ERR", uint64(EventQPAccess)}, {"IBV_EVENT_DEVICE_FATAL",
		uint64(EventDeviceFatal)}, {"IBV_EVENT_PORT_ACTIVE", uint64(EventPortActive)},
	{"IBV_EVENT_PORT_ERR", uint64(EventPortError)}, {"IBV_EVENT_GID_CHANGE",
		uint64(EventGIDChange)}, {"IBV_EVENT_WQ_FATAL", uint64(EventWQFatal)},
}

func constText(list []cConst) string {
	var b strings.Builder
	for _, c := range list {
		fmt.Fprintf(&b, "%s = %#x\n", c.c, c.value)
	}
	return b.String()
}

func constProgram(headers []string, list []cConst) string {
	var b strings.Builder
	b.WriteString("#include <stdio.h>\n#include <stddef.h>\n")
	for _, h := range headers {
		fmt.Fprintf(&b, "#include <%s>\n", h)
	}
	b.WriteString("int main(void) {\n")
	for _, c := range list {
		fmt.Fprintf(&b, "\tprintf(\"%s = %%#llx\\n\", (unsigned long long)(%s));\n", c.c, c.c)
	}
	b.WriteString("\treturn 0;\n}\n")
	return b.String()
}

func TestConstantsAgainstHeaders(t *testing.T) {
	for _, tc := range []struct {
		name    string
		headers []string
		consts  []cConst
	}{
		{"uapi", uapiHeaders, uapiConsts},
		{"verbs", []string{"infiniband/verbs.h"}, verbsConsts},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cc := need.Header(t, tc.headers...)
			says := strings.ReplaceAll(runC(t, cc, constProgram(tc.headers, tc.consts)), "= 0\n",
				"= 0x0\n")
			compareLines(t, "the C compiler", says, constText(tc.consts))
			if *update {
				if err := os.WriteFile("testdata/const_"+tc.name+".txt",
					[]byte(says), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestConstantsAgainstGolden(t *testing.T) {
	golden(t, "const_uapi.txt", constText(uapiConsts))
	golden(t, "const_verbs.txt", constText(verbsConsts))
}

// TestEventNames: every event constant of this package has a string.
func TestEventNames(t *testing.T) {
	for n := EventType(0); n <= EventSpeedChange; n++ {
		if strings.HasPrefix(n.String(), "event ") {
			t.Errorf("event %d has no name", n)
		}
	}
	if have := EventType(77).String(); have != "event 77" {
		t.Errorf("unknown event prints %q", have)
	}
}
