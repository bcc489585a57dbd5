package uverbs

// op describes one operation of the kernel: its name in messages and its command.
type op struct {
	name string // the kernel's name, which also selects the hints
	verb string
	cmd  uint32 // value of AttrWriteCmd, if it is sent by MethodInvokeWrite
}

var (
	opOpenNode       = &op{"open", "open", 0}
	opProbe          = &op{"PROBE", "probe", CmdQueryDevice}
	opGetContext     = &op{"GET_CONTEXT", "open", CmdGetContext}
	opAsyncEvents    = &op{"ASYNC_EVENT_ALLOC", "open", 0}
	opReadEvent      = &op{"read", "read", 0}
	opQueryDevice    = &op{"QUERY_DEVICE", "query", ExCmdQueryDevice}
	opQueryPort      = &op{"QUERY_PORT", "query", CmdQueryPort}
	opMapUAR         = &op{"mmap", "map", 0}
	opAllocPD        = &op{"ALLOC_PD", "allocate", CmdAllocPD}
	opDeallocPD      = &op{"DEALLOC_PD", "destroy", CmdDeallocPD}
	opRegMR          = &op{"REG_MR", "register", CmdRegMR}
	opDeregMR        = &op{"DEREG_MR", "destroy", CmdDeregMR}
	opCreateChannel  = &op{"CREATE_COMP_CHANNEL", "create", CmdCreateCompChannel}
	opCreateCQ       = &op{"CREATE_CQ", "create", ExCmdCreateCQ}
	opModifyCQ       = &op{"MODIFY_CQ", "moderate", ExCmdModifyCQ}
	opDestroyCQ      = &op{"DESTROY_CQ", "destroy", CmdDestroyCQ}
	opCreateQP       = &op{"CREATE_QP", "create", ExCmdCreateQP}
	opCreateRSSQP    = &op{"CREATE_RSS_QP", "create", ExCmdCreateQP}
	opModifyQP       = &op{"MODIFY_QP", "modify", CmdModifyQP}
	opQueryQP        = &op{"QUERY_QP", "query", CmdQueryQP}
	opDestroyQP      = &op{"DESTROY_QP", "destroy", CmdDestroyQP}
	opCreateWQ       = &op{"CREATE_WQ", "create", ExCmdCreateWQ}
	opModifyWQ       = &op{"MODIFY_WQ", "modify", ExCmdModifyWQ}
	opDestroyWQ      = &op{"DESTROY_WQ", "destroy", ExCmdDestroyWQ}
	opCreateIndTable = &op{"CREATE_RWQ_IND_TBL", "create", ExCmdCreateRWQIndTbl}
	opDestroyIndTbl  = &op{"DESTROY_RWQ_IND_TBL", "destroy", ExCmdDestroyRWQIndTbl}
	opCreateFlow     = &op{"CREATE_FLOW", "create", ExCmdCreateFlow}
	opDestroyFlow    = &op{"DESTROY_FLOW", "destroy", ExCmdDestroyFlow}
	opCreateMatcher  = &op{"FLOW_MATCHER_CREATE", "create", 0}
	opDestroyMatcher = &op{"FLOW_MATCHER_DESTROY", "destroy", 0}
	opCreateMiss     = &op{"CREATE_RAW_FLOW", "create", 0}
	opCreateCounters = &op{"COUNTERS_CREATE", "create", 0}
	opReadCounters   = &op{"COUNTERS_READ", "read", 0}
	opDestroyCount   = &op{"COUNTERS_DESTROY", "destroy", 0}
)
