# bash completion of rdma-netstack: "rdma-netstack completion bash" prints this.
_rdma_netstack() {
	local line names word=${COMP_WORDS[COMP_CWORD]}
	COMPREPLY=()
	while IFS= read -r line; do
		case $line in
		:file | :dir)
			[[ $line == :dir ]] && names=-d || names=-f
			compopt -o filenames 2>/dev/null
			while IFS= read -r line; do
				COMPREPLY+=("$line")
			done < <(compgen $names -- "$word")
			;;
		*)
			line=${line%%$'\t'*}
			[[ $line == *: ]] && compopt -o nospace 2>/dev/null
			COMPREPLY+=("$line")
			;;
		esac
	done < <("${COMP_WORDS[0]}" completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _rdma_netstack rdma-netstack
