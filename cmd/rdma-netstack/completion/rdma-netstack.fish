# fish completion of rdma-netstack: "rdma-netstack completion fish" prints this.
function __rdma_netstack_words
	set -l words (commandline -opc)
	set -l program $words[1]
	set -e words[1]
	set -l current (commandline -ct)
	for line in ($program completion words $words "$current" 2>/dev/null)
		switch $line
			case :file
				__fish_complete_path "$current"
			case :dir
				__fish_complete_directories "$current"
			case '*'
				echo $line
		end
	end
end
complete -c rdma-netstack -f -a '(__rdma_netstack_words)'
