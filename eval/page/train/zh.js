// The words of this page in Chinese, in the terms of docs/glossary.zh-CN.md.

const ZH_OF_RUNS = {};
const ZH = {
  "A head is born": "一个注意力头的诞生",
  "Train a small language model here, in your browser. Each square is one of its": "就在你的浏览器里，训练一个很小的语言模型。每个方格是它的一个",
  "attention heads": "注意力头",
  ": a row is a token, and its colours show which tokens before it the head looks at.": "：一行是一个 token，颜色表示这个头关注它前面的哪些 token。",
  "The model": "模型", "Attention": "注意力", "Heads": "头 ", "Layers": "层 ", "Seed": "随机种子 ", "Text": "文本 ",
  "random repeats": "随机重复", "your own text": "你自己的文本", "Your text": "你的文本", "Training": "训练",
  "▶ Train": "▶ 训练", "❙❙ Pause": "❙❙ 暂停", "One step": "走一步", "Start over": "重新开始",
  "Training step: go back in time": "训练步：回到过去", "divide by √d": "除以 √d", "causal mask": "因果掩码",
  "What you see": "你看到了什么",
  "The text is random: a block of symbols, again and again. Nobody can guess the first copy. The second copy can be read off the first: look for the same symbol before, and copy what followed it. A head that does so is an":
    "文本是随机的：一段符号，重复许多遍。第一遍谁也猜不出来。第二遍可以照着第一遍读：找到前面同样的符号，把它后面的抄下来。会这样做的头叫做",
  "induction head": "归纳头",
  ". It needs a head in the layer below that looks at the token before.": "。它需要下面一层有一个头，关注前一个 token。",
  "Nothing is prepared. Weights begin random, and your browser computes every step: attention forward and backward, cross-entropy and Adam. The same seed gives the same curve in every browser.":
    "没有任何东西是预先准备好的。权重从随机开始，每一步都由你的浏览器计算：注意力的前向和反向、交叉熵、Adam。同一个种子，在任何浏览器里曲线都相同。",
  ": each head has keys and values of its own.": "：每个头都有自己的键和值。",
  ": two heads or more share them.": "：两个或更多的头共用键和值。",
  ": all heads share them. Heads with the same frame colour share keys and values.": "：所有的头共用键和值。边框颜色相同的头，键和值也相同。",
  "Chance": "随机水平", "is the score of a head that looks at all tokens alike.": "是均匀关注所有 token 的头的分数。",
  "Copy gain": "复制增益", "is the loss on the first copy minus the loss on the second, in nats a token.": "是第一遍的损失减去第二遍的损失，单位是每个 token 的 nat。",
  "Try": "试一试",
  ": switch the new head off while training runs. Switch off a whole layer. Take the mask away before you train: the model looks at the answer, and learns nothing that it can use. One layer alone has no induction head. A text of your own is learned by heart, and no head needs to copy.":
    "：训练时关掉刚诞生的头；关掉整整一层；训练前去掉掩码，模型会偷看答案，学不到有用的东西。只有一层时，不会有归纳头。你自己的短文本会被背下来，没有哪个头需要复制。",
  "three at once": "三个一起", "Light": "浅色", "Dark": "深色", "Heads of {0}": "{0} 的头", "layer {0}": "第 {0} 层",
  "layer {0}, head {1}": "第 {0} 层第 {1} 个头", "Switch layer {0} off or on": "关掉或打开第 {0} 层", "first time": "第一遍", "again": "第二遍",
  "{0} heads, {1} key/value heads": "{0} 个头，{1} 个键/值头", "off": "已关",
  "step {0}: layer {1}, head {2} learned to look at the token before": "第 {0} 步：第 {1} 层第 {2} 个头学会了关注前一个 token",
  "step {0}: layer {1}, head {2} learned to look at what followed the same token before":
    "第 {0} 步：第 {1} 层第 {2} 个头学会了关注同一个 token 上次出现时后面跟着什么",
  "Click a head to switch it off, or the name of a layer. How many can the model lose?": "点一个头就能关掉它，点层的名字就关掉整层。模型少了几个头还行？",
  "token before: {0}, what followed the same token: {1}": "前一个 token：{0}，同一个 token 后面的：{1}",
  "The symbols: left and right arrow to see where a head looks from each": "各个符号：用左右方向键，看头从每个符号关注哪里",
  "No head knows where to look.": "还没有一个头知道该看哪里。", "chance {0}": "随机水平 {0}", "chance": "随机水平",
  "second copy guessed right": "第二遍猜对的概率", "best previous-token head": "最强的前一 token 头", "best induction head": "最强的归纳头",
  "copy gain": "复制增益", "{0} nats": "{0} nat", "step {0}": "第 {0} 步", "step {0}: layer {1}, head {2}": "第 {0} 步：第 {1} 层第 {2} 个头",
  "{0} at {1}: most attention, {2} %, to {3}": "{0}，在 {1} 处：最关注 {3}（{2} %）",
  "Blue: the model expects this symbol. Point at one to see where a head looks from there.": "蓝色：模型料到了这个符号。指向一个符号，看头从那里关注哪里。",
  "Induction: the best head's attention to what followed the same token": "归纳：最强的头对“同一个 token 后面跟着什么”的关注",
  "Copy gain: nats won on the second copy": "复制增益：第二遍少了多少 nat", "Loss on the training text, in nats a token": "训练文本上的损失（每个 token，nat）",
  "Write at least 100 characters.": "请至少写 100 个字符。", "The training stopped: {0}. Reload the page.": "训练中断：{0}。请重新加载页面。",
  "A head looks at the letters before it and wants to know which one comes next. At first it knows nothing, and looks everywhere. Then it learns that the letter before helps most. Then another head learns to find the same letter further back, and to look at what came after it. It copies. A head is born.":
    "一个头看着前面的字，想知道下一个字是什么。一开始它什么也不懂，哪里都看一点。后来它发现，前一个字最有用。再后来，另一个头发现：同一个字以前出现过，看看那时后面跟着什么，照着抄就行了。于是，一个头诞生了。",
};
