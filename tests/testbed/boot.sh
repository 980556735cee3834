# A host from its first process on, in new mount, hostname, IPC and process namespaces and in its own network.
# Arguments: name, the host's folder, the testbed's folder, the file for our pid. Bind mounts of what the host may read
# come on stdin, a path a line. Says "ready", and then is the host's init: it lives as long as the host, and reaps.
set -eu
umask 022
name=$1 folder=$2 bed=$3 pid_file=$4
read -r pid rest </proc/self/stat # the machine's /proc is still there, with our number on the machine
echo "$pid" >"$pid_file"

hostname "$name"
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=1777 tmpfs /dev/shm

# The folder is reached through /mnt from here on: below /tmp or /root it would vanish under the host's own.
mount --rbind "$folder" /mnt
while read -r path; do # below a folder that the host has of its own: brought into that one, read-only
  mkdir -p "/mnt$path"
  mount --bind "$path" "/mnt$path"
  mount -o remount,bind,ro "/mnt$path"
done
mount --bind "$bed/shared" /shared
for etc in passwd group hosts slurm munge subuid subgid; do
  [ ! -e "/etc/$etc" ] || mount --bind "$bed/etc/$etc" "/etc/$etc"
done
mount --bind /mnt/ssh /etc/ssh
for own in home root scratch srv tmp; do mount --rbind "/mnt/$own" "/$own"; done
mount --bind /mnt/tmp /var/tmp # each host's own, as on machines
umount -l /mnt
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/sshd /run/lock
cd /

echo ready
exec >/dev/null 2>&1 </dev/null
sleep infinity &
wait
