package uverbs

// Numbers of include/uapi/rdma/rdma_user_ioctl_cmds.h, ib_user_ioctl_cmds.h, ib_user_verbs.h and
// ib_user_ioctl_verbs.h. Those without a uAPI name (queue states, event numbers, flow types) are
// the kernel's include/rdma/ib_verbs.h as libibverbs publishes them in infiniband/verbs.h.

// IoctlCode is RDMA_VERBS_IOCTL: read and write, type 0x1b, number 1, size of IoctlHdr.
const IoctlCode = 0xC0181B01

// ABIVersion gives the content of /sys/class/infiniband_verbs/abi_version this package speaks.
const ABIVersion = 6

// Kernel driver ids (enum rdma_driver_id).
const (
	DriverMLX5 uint32 = 1
	DriverMLX4 uint32 = 2
	DriverRXE  uint32 = 14
	DriverEFA  uint32 = 17
	DriverSIW  uint32 = 18
)

// Attribute flags of IoctlAttr.Flags.
const (
	// the kernel must refuse the call if it does not know the attribute
	AttrMandatory   uint16 = 1
	AttrValidOutput uint16 = 2 // set by the kernel, in place, on outputs it wrote
)

// Object kinds (enum uverbs_default_objects).
const (
	ObjectDevice      uint16 = 0
	ObjectPD          uint16 = 1
	ObjectCompChannel uint16 = 2
	ObjectCQ          uint16 = 3
	ObjectQP          uint16 = 4
	ObjectMR          uint16 = 7
	ObjectFlow        uint16 = 9
	ObjectRWQIndTable uint16 = 11
	ObjectWQ          uint16 = 12
	ObjectCounters    uint16 = 15
	ObjectAsyncEvent  uint16 = 16

	ObjectFlowMatcher uint16 = 0x1003 // of mlx5 (enum mlx5_ib_objects)
)

// Methods of the objects used natively.
const (
	MethodInvokeWrite  uint16 = 0 // ObjectDevice
	MethodQueryPort    uint16 = 2 // ObjectDevice
	MethodGetContext   uint16 = 3 // ObjectDevice
	MethodQueryContext uint16 = 4 // ObjectDevice

	MethodAsyncEventAlloc uint16 = 0 // ObjectAsyncEvent

	MethodCountersCreate  uint16 = 0 // ObjectCounters
	MethodCountersDestroy uint16 = 1 // ObjectCounters
	MethodCountersRead    uint16 = 2 // ObjectCounters

	MethodFlowMatcherCreate  uint16 = 0x1000 // ObjectFlowMatcher
	MethodFlowMatcherDestroy uint16 = 0x1001 // ObjectFlowMatcher
	MethodRawFlowCreate      uint16 = 0x1000 // ObjectFlow
	MethodRawFlowDestroy     uint16 = 0x1001 // ObjectFlow
)

// Attribute ids.
const (
	AttrCoreIn   uint16 = 0 // MethodInvokeWrite: command struct
	AttrCoreOut  uint16 = 1 // MethodInvokeWrite: response struct
	AttrWriteCmd uint16 = 2 // MethodInvokeWrite: command number, a constant of 8 bytes

	AttrUHWIn  uint16 = 0x1000 // driver's request
	AttrUHWOut uint16 = 0x1001 // driver's response

	AttrNumCompVectors uint16 = 0 // MethodGetContext: out, 4 bytes
	AttrCoreSupport    uint16 = 1 // MethodGetContext: out, 8 bytes

	AttrQueryPortNum  uint16 = 0 // MethodQueryPort: a constant of 8 bytes
	AttrQueryPortResp uint16 = 1 // MethodQueryPort: out, QueryPortRespEx

	AttrAsyncEventFD uint16 = 0 // MethodAsyncEventAlloc: new descriptor

	AttrCountersHandle uint16 = 0 // all counters methods
	AttrCountersBuffer uint16 = 1 // MethodCountersRead: out, array of uint64
	AttrCountersFlags  uint16 = 2 // MethodCountersRead: in, 4 bytes

	AttrFlowMatcherHandle   uint16 = 0x1000 // both methods of flow matchers
	AttrFlowMatcherMask     uint16 = 0x1001 // create: in, up to 640 bytes
	AttrFlowMatcherType     uint16 = 0x1002 // create: in, 2 bytes: the priority of normal rules
	AttrFlowMatcherCriteria uint16 = 0x1003 // create: in, 1 byte
	AttrFlowMatcherFlags    uint16 = 0x1004 // create: in, 4 bytes
	AttrFlowMatcherTable    uint16 = 0x1005 // create: a constant of 8 bytes

	AttrRawFlowHandle  uint16 = 0x1000 // both raw methods of flows
	AttrRawFlowValue   uint16 = 0x1001 // create: in, up to 640 bytes
	AttrRawFlowQP      uint16 = 0x1002 // create: a queue pair
	AttrRawFlowMatcher uint16 = 0x1004 // create: a flow matcher
	AttrRawFlowTag     uint16 = 0x1006 // create: in, 4 bytes
	AttrRawFlowFlags   uint16 = 0x1009 // create: in, 4 bytes; since linux 5.6
)

// MatchOuterHeaders gives the bit of AttrFlowMatcherCriteria for the first 64 bytes of a mask.
const MatchOuterHeaders uint8 = 1

// Bits of AttrRawFlowFlags (enum mlx5_ib_create_flow_flags). One at most, and none with a queue
// pair.
const (
	RawFlowDefaultMiss uint32 = 1 // to the tables behind those of user rules
	RawFlowDrop        uint32 = 2
)

// CountersPreferCached allows a counters read to return the values of the driver's last poll.
const CountersPreferCached uint32 = 1

// CoreSupportOptionalMRAccess gives the bit of AttrCoreSupport that says that unknown bits of
// AccessOptionalMask are ignored rather than refused.
const CoreSupportOptionalMRAccess uint64 = 1

// Command numbers for AttrWriteCmd (enum ib_uverbs_write_cmds); extended ones carry CmdExtended.
const (
	CmdGetContext        uint32 = 0
	CmdQueryDevice       uint32 = 1
	CmdQueryPort         uint32 = 2
	CmdAllocPD           uint32 = 3
	CmdDeallocPD         uint32 = 4
	CmdRegMR             uint32 = 9
	CmdDeregMR           uint32 = 13
	CmdCreateCompChannel uint32 = 17
	CmdCreateCQ          uint32 = 18
	CmdResizeCQ          uint32 = 19
	CmdDestroyCQ         uint32 = 20
	CmdCreateQP          uint32 = 24
	CmdQueryQP           uint32 = 25
	CmdModifyQP          uint32 = 26
	CmdDestroyQP         uint32 = 27

	CmdExtended           uint32 = 0x80000000
	ExCmdQueryDevice             = CmdExtended | CmdQueryDevice
	ExCmdCreateCQ                = CmdExtended | CmdCreateCQ
	ExCmdCreateQP                = CmdExtended | CmdCreateQP
	ExCmdModifyQP                = CmdExtended | CmdModifyQP
	ExCmdCreateFlow              = CmdExtended | 50
	ExCmdDestroyFlow             = CmdExtended | 51
	ExCmdCreateWQ                = CmdExtended | 52
	ExCmdModifyWQ                = CmdExtended | 53
	ExCmdDestroyWQ               = CmdExtended | 54
	ExCmdCreateRWQIndTbl         = CmdExtended | 55
	ExCmdDestroyRWQIndTbl        = CmdExtended | 56
	ExCmdModifyCQ                = CmdExtended | 57
)

// QPTypeRawPacket is IB_UVERBS_QPT_RAW_PACKET: a queue pair that carries whole Ethernet frames.
const QPTypeRawPacket uint8 = 8

// RawPacketBit is QPTypeRawPacket's bit in the supported_qpts masks.
const RawPacketBit uint32 = 1 << QPTypeRawPacket

// CreateQPMaskIndTable gives the bit of ExCreateQPReq.CompMask that makes RWQIndTblHandle valid.
const CreateQPMaskIndTable uint32 = 1

// Flags of ExCreateQPReq.CreateFlags.
const (
	QPCreateScatterFCS         uint32 = 0x100
	QPCreateCVLANStripping     uint32 = 0x200
	QPCreatePCIWriteEndPadding uint32 = 0x800
)

// Bits of ModifyQPReq.AttrMask and QueryQPReq.AttrMask.
const (
	QPAttrState     uint32 = 1
	QPAttrCurState  uint32 = 2
	QPAttrPort      uint32 = 0x20
	QPAttrRateLimit uint32 = 0x2000000
)

// Bits of ExModifyWQReq.AttrMask.
const (
	WQAttrState    uint32 = 1
	WQAttrCurState uint32 = 2
	WQAttrFlags    uint32 = 4
)

// WQTypeRQ is IB_UVERBS_WQT_RQ.
const WQTypeRQ uint32 = 0

// Flags of ExCreateWQReq.CreateFlags and ExModifyWQReq.Flags.
const (
	WQFlagCVLANStripping     uint32 = 1
	WQFlagScatterFCS         uint32 = 2
	WQFlagDelayDrop          uint32 = 4
	WQFlagPCIWriteEndPadding uint32 = 8
)

// MaxLogIndTblSize bounds ExCreateRWQIndTblReq.LogIndTblSize in the core; the driver's own bound is
// lower.
const MaxLogIndTblSize = 13

// Flags of ExCreateCQReq.Flags.
const (
	CQFlagTimestampCompletion uint32 = 1
	CQFlagIgnoreOverrun       uint32 = 2
)

// CQAttrModerate is the only bit of ExModifyCQReq.AttrMask (IB_CQ_MODERATE).
const CQAttrModerate uint32 = 1

// Memory access rights of RegMRReq.AccessFlags.
const (
	AccessLocalWrite      uint32 = 1        // the device may write: needed for receive memory
	AccessOnDemand        uint32 = 0x40     // on-demand paging: not for raw packet queues
	AccessHugeTLB         uint32 = 0x80     // a hint
	AccessRelaxedOrdering uint32 = 0x100000 // payload writes may overtake each other on the bus

	// bits a kernel may ignore, see CoreSupportOptionalMRAccess
	AccessOptionalMask uint32 = 0x3ff00000
)

// Port states and link layers of QueryPortResp.
const (
	PortStateDown   uint8 = 1
	PortStateInit   uint8 = 2
	PortStateArmed  uint8 = 3
	PortStateActive uint8 = 4

	LinkLayerUnspecified uint8 = 0
	LinkLayerInfiniBand  uint8 = 1
	LinkLayerEthernet    uint8 = 2
)

// Bits of QueryDeviceResp.DeviceCapFlags and ExQueryDeviceResp.DeviceCapFlagsEx.
const (
	DevCapRawIPCsum           uint64 = 1 << 26
	DevCapManagedFlowSteering uint64 = 1 << 29
	DevCapRawScatterFCS       uint64 = 1 << 34
	DevCapPCIWriteEndPadding  uint64 = 1 << 36
	// kernels of 2026 and later: user memory cannot be reached by DMA
	DevCapBounceBuffersRequired uint64 = 1 << 41
)

// Bits of ExQueryDeviceResp.RawPacketCaps.
const (
	RawPacketCapCVLANStripping uint32 = 1
	RawPacketCapScatterFCS     uint32 = 2
	RawPacketCapIPCsum         uint32 = 4
	RawPacketCapDelayDrop      uint32 = 8
)

// Values of FlowAttrHdr.Type.
const (
	FlowNormal     uint32 = 0 // before the kernel netdev's tables
	FlowAllDefault uint32 = 1 // after them: frames that Linux does not accept
	FlowMCDefault  uint32 = 2 // after them, multicast only
	FlowSniffer    uint32 = 3 // a copy of all frames that the port receives and sends
)

// Bits of FlowAttrHdr.Flags.
const (
	FlowFlagDontTrap uint32 = 2 // deliver a copy, and let later rules match the frame
	FlowFlagEgress   uint32 = 4 // not used
)

// MaxFlowSpecs gives the maximum number of specifications of a rule.
const MaxFlowSpecs = 10

// Values of FlowSpecHdr.Type.
const (
	FlowSpecTypeEth         uint32 = 0x20
	FlowSpecTypeIPv4        uint32 = 0x30
	FlowSpecTypeIPv6        uint32 = 0x31
	FlowSpecTypeTCP         uint32 = 0x40
	FlowSpecTypeUDP         uint32 = 0x41
	FlowSpecTypeVXLAN       uint32 = 0x50
	FlowSpecTypeGRE         uint32 = 0x51
	FlowSpecTypeInner       uint32 = 0x100 // or-ed in: a header inside a tunnel
	FlowSpecTypeActionTag   uint32 = 0x1000
	FlowSpecTypeActionDrop  uint32 = 0x1001
	FlowSpecTypeActionCount uint32 = 0x1003
)
